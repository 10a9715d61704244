r"""Whether the hidden units agree on a pixel, and whether batches do: the pushes on each entry of a mask.

With $G_k$ the gradient of the loss of a batch with respect to the folded weights $v_k=a_kw_k$ of pixel $k$, the mask
entry $a_k$ is pushed by $\langle G_k,w_k\rangle$, a sum over hidden units. Two things can make a push come to nothing:
the units disagree within a batch, or the batches disagree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream
from attnbook.core.runtime import threads
from attnbook.datasets import Images
from attnbook.global_attention.digit_training import (
    Member,
    Training,
    _Data,
    _initial_parameters,
    _Rule,
    loss_and_gradient,
)

__all__ = ["Agreement", "measure_agreement"]

# Stands in for the product of two lengths that is zero.
SMALLEST = 1e-30


@dataclass(frozen=True)
class Agreement:
    r"""How far the pushes on each mask entry agree; 1 is full agreement, NaN a pixel that is always dark.

    Attributes:
        units: Mean over steps of $|\cos(G_k,w_k)|$, ``(members, pixels)``.
        units_by_chance: The same with the hidden units of $w_k$ in random order.
        batches: $|\sum_tP_k|/\sum_t|P_k|$ of the pushes $P_k=\langle G_k,w_k\rangle$ over steps $t$, one batch each,
            ``(members, pixels)``.
        batches_by_chance: The same with a random sign for each push.
    """

    units: Float[np.ndarray, "members pixels"]
    units_by_chance: Float[np.ndarray, "members pixels"]
    batches: Float[np.ndarray, "members pixels"]
    batches_by_chance: Float[np.ndarray, "members pixels"]


def measure_agreement(
    members: Sequence[Member],
    images: Images,
    training: Training,
    *,
    steps: range,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Agreement:
    """Train networks for a few steps and look at the pushes on their masks along the way.

    Args:
        members: The networks, as for :func:`~attnbook.global_attention.digit_training.train_members`.
        images: The digits.
        training: Batch size, momentum and sizes.
        steps: At which steps to look; training ends with the last one. At least two, rising by one.
        device: Where to compute.
        dtype: Type of the computation; default float32.

    Returns:
        The agreement at these steps.

    Raises:
        ValueError: If ``steps`` is not as described or reaches beyond those of the training.
        FloatingPointError: If a network diverges.
    """
    if len(steps) < 2 or steps.step != 1 or not 0 <= steps.start < steps.stop <= training.steps:
        raise ValueError(f"steps: expected at least two, rising by one, before {training.steps}, got {steps}")
    data = _Data(members, images, training, device, dtype)
    upcoming, rng = iter(steps), stream(0, "agreement by chance")

    def look(parameters: Parameters) -> dict[str, Tensor]:
        _, gradients = loss_and_gradient(parameters, data.batch(next(upcoming)))
        folded, hidden = gradients["hidden"] / parameters["mask"].unsqueeze(1), parameters["hidden"]
        order = torch.as_tensor(rng.permutation(training.width), device=device)
        lengths = (folded.norm(dim=1) * hidden.norm(dim=1)).clamp_min(SMALLEST)
        by_chance = (folded * hidden[:, order]).sum(1)
        return {
            "push": gradients["mask"],
            "units": (gradients["mask"] / lengths).abs(),
            "units_by_chance": (by_chance / lengths).abs(),
        }

    with threads(1):
        history = ensemble.train(
            _Rule(members, data),
            _initial_parameters(members, training.width, data),
            data.batch,
            optimizer=update_rules.SGD(1.0, momentum=training.momentum),  # step sizes are in the gradients
            steps=steps.stop - 1,
            record=look,
            record_at=tuple(steps),
            names=[str(m) for m in members],
        )
    pushes = history.records["push"]
    strength = np.abs(pushes).sum(axis=0)
    signs = rng.choice((-1.0, 1.0), size=(len(pushes), 1, pushes.shape[2]))
    of_units = (history.records[name].mean(axis=0) for name in ("units", "units_by_chance"))
    of_batches = (np.abs((sign * pushes).sum(axis=0)) / np.where(strength > 0, strength, np.nan) for sign in (1, signs))
    return Agreement(*(np.where(strength > 0, values, np.nan) for values in (*of_units, *of_batches)))
