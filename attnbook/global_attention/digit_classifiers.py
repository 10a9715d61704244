r"""The networks of Figure 3, which tell digits in noise apart, and the Hessians of their training losses.

$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$ with softplus, without biases, trained by SGD with momentum on the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.global_attention.batches import Batches, initial_network
from attnbook.global_attention.noisy_digits import NoisyDigits
from attnbook.global_attention.two_layer import Hessian, Softplus, mean_loss, predict
from attnbook.train import SGD, autograd, train

__all__ = ["accuracy", "loss_hessian", "train_classifiers", "weights_at"]

CLASSES, BATCH_SIZE, MOMENTUM, ACTIVATION = 10, 64, 0.9, Softplus(10.0)


def train_classifiers(
    data: NoisyDigits,
    seed: int,
    attends: Sequence[bool],
    decays: Sequence[float],
    *,
    width: int,
    step_size: float,
    steps: int,
    record_every: int,
    device: torch.device,
) -> History:
    r"""Train networks from the same weights on the same batches.

    Args:
        data: The samples.
        seed: Of the initial weights and the batches.
        attends: For each network whether its mask is trained; else it stays at ones.
        decays: For each network the weight of the penalty $\frac12\|w\|^2$ on both layers.
        width: Hidden units.
        step_size: Of SGD.
        steps: Number of steps.
        record_every: Steps between records; the last step has one as well.
        device: Where to compute.

    Returns:
        History with the records ``train_loss``, without the penalty, ``mask``, ``hidden`` and ``decoder``.

    Raises:
        ValueError: If there are not as many decays as networks.
    """
    if len(attends) != len(decays):
        raise ValueError(f"decays: expected one for each of {len(attends)} networks, got {len(decays)}")
    inputs, labels = to_tensor(data.train, device=device), _one_hot(data.train_labels, device)
    rows = Batches([(seed,)], [len(inputs)], [0], BATCH_SIZE, device)
    start = initial_network([seed] * len(attends), inputs.shape[1], width, CLASSES)
    trained = torch.tensor(list(attends), device=device)[:, None]
    decay = to_tensor(list(decays), device=device)

    def losses(now: Parameters, chosen: Any) -> Tensor:
        masked = now | {"mask": torch.where(trained, now["mask"], 1.0)}  # no gradient moves the others
        outputs = predict(masked, inputs[chosen][None], ACTIVATION)
        return mean_loss(outputs, labels[:, chosen].expand_as(outputs), "cross_entropy")

    def penalised(now: Parameters, chosen: Tensor) -> Tensor:
        squares = now["hidden"].square().sum((1, 2)) + now["decoder"].square().sum((1, 2))
        return losses(now, chosen) + decay / 2 * squares

    return train(
        autograd(penalised),
        {name: to_tensor(start[name], device=device) for name in ("mask", "hidden", "decoder")},
        lambda step: rows(step)[0],
        optimizer=SGD(step_size, MOMENTUM),
        steps=steps,
        record=lambda now: now | {"train_loss": losses(now, slice(None))},
        record_at=sorted({*range(0, steps, record_every), steps}),
    )


def weights_at(history: History, record: int, member: int, *, device: torch.device) -> Parameters:
    """Return the weights of one network.

    Args:
        history: What :func:`train_classifiers` gave.
        record: Which record; -1 is the last.
        member: Which network.
        device: Where the weights are wanted.

    Returns:
        ``mask (pixels,)``, ``hidden (width, pixels)`` and ``decoder (classes, width)``.
    """
    names = ("mask", "hidden", "decoder")
    return {name: to_tensor(history.records[name][record, member], device=device) for name in names}


def accuracy(
    weights: Parameters, inputs: Float[np.ndarray, "samples pixels"], labels: Int[np.ndarray, " samples"]
) -> float:
    """Return the share of images that one network classifies right.

    Args:
        weights: Its ``mask``, ``hidden`` and ``decoder``.
        inputs: The images.
        labels: Which digit is in each.

    Returns:
        A number between 0 and 1.
    """
    one = {name: tensor[None] for name, tensor in weights.items()}
    scores = predict(one, to_tensor(inputs, device=weights["mask"].device)[None], ACTIVATION)[0]
    return float((scores.argmax(0).cpu().numpy() == labels).mean())


def loss_hessian(weights: Parameters, data: NoisyDigits, *, folded: bool) -> Hessian:
    r"""Return the Hessian of one network's training loss.

    Args:
        weights: Of one network, ``mask``, ``hidden`` and ``decoder``.
        data: The samples.
        folded: Whether it is that in $w^{(1)}\mathrm{diag}(a)$ and $w^{(2)}$; else in all three groups of weights.

    Returns:
        Its product with vectors.
    """
    mask, hidden, decoder = (weights[name] for name in ("mask", "hidden", "decoder"))
    inputs, labels = to_tensor(data.train, device=mask.device), _one_hot(data.train_labels, mask.device)
    options: dict[str, Any] = {"activation": ACTIVATION, "loss": "cross_entropy"}
    if folded:
        return Hessian(None, hidden * mask, decoder, inputs, labels, **options)
    return Hessian(mask, hidden, decoder, inputs, labels, **options)


def _one_hot(labels: np.ndarray, device: torch.device) -> Tensor:
    """Return digits as columns with a single one."""
    return to_tensor(np.eye(CLASSES)[:, labels], device=device)
