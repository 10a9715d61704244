r"""Controls for Table 2: what is left of self-attention when nothing can be attended to.

Freeze query and key matrices at zero. All scores are then 0, every position has the output $o=\frac1P\sum_jw^Vx_j$,
and the first layer sees it $P$ times: $h = S^\top o + b$ with $S=\sum_zW_z$. Each $W_z$ has the same gradient $G$, so
an optimiser that acts on each entry gives all of them the same update $u(G)$, and

$$S \leftarrow S + P\,u(G).$$

**Uniform attention over padding is a bag of words whose first layer has a step size $P$ times larger**: exactly, so
that a network of 55 million weights is trained as one of 36 thousand. ``mean_pooling`` drops the rest too: the mean
of the real word vectors, an ordinary first layer, an ordinary step size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.review_networks import Shape, initial_weights, uniform
from attnbook.global_attention.review_training import Recipe, epoch_batches

__all__ = ["Control", "PooledNetwork", "train_pooled"]

Control: TypeAlias = Literal["uniform_attention", "mean_pooling"]


class PooledNetwork:
    """A control: one vector per review, then the two layers of Table 2.

    Attributes:
        control: Which control.
        parameters: Name to tensor.
        factor: Times the step size for the first layer; ``n_positions`` for uniform attention, else 1.
    """

    def __init__(self, control: Control, shape: Shape, like: Tensor, *, seed: int) -> None:
        """Draw initial weights; for uniform attention those of the network of Table 2 with the same seed.

        Args:
            control: Which control.
            shape: Sizes of the network that it stands for.
            like: A tensor of the wanted device and type.
            seed: Seed of the initial weights.

        Raises:
            ValueError: If the control is unknown.
        """
        if control not in get_args(Control):
            raise ValueError(f"control: expected one of {', '.join(get_args(Control))}, got {control!r}")
        self.control, self.factor = control, 1
        t, width = shape.dimension, shape.width
        if control == "uniform_attention":
            small, weights = initial_weights(shape, seed, like)
            kept = ("value", "bias", "decoder", "decoder_bias")
            self.parameters = {"first": weights.sum(0), **{name: small[name] for name in kept}}
            self.factor = shape.n_positions
            return
        sizes = {"first": ((t, width), t), "bias": ((width,), t)}
        sizes |= {"decoder": ((width,), width), "decoder_bias": ((), width)}
        self.parameters = {name: uniform(stream(seed, "pooled", name), *size, like) for name, size in sizes.items()}

    def logits(self, parameters: dict[str, Tensor], pooled: Float[Tensor, "reviews t"]) -> Float[Tensor, " reviews"]:
        """Return the logit of each review.

        Args:
            parameters: Name to tensor.
            pooled: One vector per review: the sum of its word vectors over ``n_positions``, or their mean.

        Returns:
            Positive for praise.
        """
        seen = pooled @ parameters["value"].mT if "value" in parameters else pooled
        hidden = (seen @ parameters["first"] + parameters["bias"]).relu()
        return hidden @ parameters["decoder"] + parameters["decoder_bias"]


def train_pooled(
    network: PooledNetwork,
    pooled: Float[np.ndarray, "reviews t"],
    labels: Float[np.ndarray, " reviews"],
    recipe: Recipe,
    *,
    seed: int,
    after_epoch: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " epochs"]:
    """Train a control in place, on the batches that the networks of Table 2 see.

    Args:
        network: The control.
        pooled: One vector per training review.
        labels: 1 for praise, 0 for blame.
        recipe: Step size, epochs and batches.
        seed: Seed of the order of the reviews.
        after_epoch: Called after each epoch.
        progress: Told (epochs done, epochs in all).

    Returns:
        Mean training loss in each epoch.

    Raises:
        ValueError: If there is not one label per vector.
        FloatingPointError: If the loss becomes NaN or infinite.
    """
    if len(labels) != len(pooled):
        raise ValueError(f"labels: expected one for each of {len(pooled)} vectors, got {len(labels)}")
    p, like = network.parameters, network.parameters["first"]
    inputs, targets = (to_tensor(x, device=like.device, dtype=like.dtype) for x in (pooled, labels))
    rest = [tensor for name, tensor in p.items() if name != "first"]
    optimizer = update_rules.Adam(recipe.step_size).build(
        [{"params": [p["first"]], "lr": recipe.step_size * network.factor}, {"params": rest, "lr": recipe.step_size}]
    )
    gradient = ensemble.autograd(lambda q, batch: _loss(network, q, batch))
    losses = []
    for epoch in range(recipe.epochs):
        total = 0.0
        for chosen in epoch_batches(len(labels), recipe, seed, epoch):
            rows = torch.as_tensor(chosen, device=like.device)
            loss, gradients = gradient(p, (inputs[rows], targets[rows]))
            total += float(loss) * len(chosen)
            for name, tensor in p.items():
                tensor.grad = gradients[name]
            optimizer.step()
        losses.append(total / len(labels))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(f"{network.control}, seed {seed}: loss {losses[-1]} in epoch {epoch + 1}")
        after_epoch()
        if progress:
            progress(epoch + 1, recipe.epochs)
    return np.array(losses)


def _loss(network: PooledNetwork, parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(network.logits(parameters, inputs), targets)
