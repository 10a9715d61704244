"""Training of very wide networks after the first phase, with the sums and distances that bounds are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, network
from attnbook.multi_head.experiments import wide
from attnbook.multi_head.objectives import logistic

__all__ = ["norms", "train"]


def train(
    stack: wide.Stack,
    step_size: float | Sequence[float],
    steps: int,
    recorded: Sequence[int],
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train every member and return what bounds on its training are about.

    Args:
        stack: Start and samples of each member.
        step_size: The constant step size, one number or one per member.
        steps: Number of steps.
        recorded: Steps to keep, increasing.
        progress: Told (steps done, steps in all).

    Returns:
        ``loss``, ``average`` (over steps 1 to the recorded one), ``distance`` and ``largest_move``, all ``(members,
        recorded)``; ``attention`` on relevant tokens at the end ``(members, groups)``; ``outputs`` at the end
        ``(members, samples)``, a tensor.

    Raises:
        FloatingPointError: If a member diverges.
    """

    def record(parameters: Parameters) -> dict[str, Tensor]:
        change = {name: parameters[name] - stack.start[name] for name in stack.start}
        return {
            "loss": wide.losses(parameters, stack),
            "distance": head_groups.norm(change, counts=stack.counts),
            "largest_move": wide.moved(parameters, stack),
        }

    history = head_groups.gradient_descent(
        stack.start,
        stack.tokens,
        logistic(stack.labels),
        counts=stack.counts,
        step_size=step_size,
        steps=steps,
        record=record,
        record_at=range(steps + 1),
        progress=progress,
    )
    at, loss = list(recorded), history.records["loss"]
    average = np.cumsum(loss[1:], axis=0) / np.arange(1, steps + 1)[:, None]
    kept = {name: values[at].T for name, values in history.records.items()}
    return kept | {
        "average": np.concatenate([loss[:1], average])[at].T,
        "attention": _attention(history.parameters, stack),
        "outputs": layer.outputs(history.parameters, stack.tokens, counts=stack.counts),
    }


def norms(stack: wide.Stack, widths: int) -> dict[str, Float[np.ndarray, " seeds"]]:
    """Return the norms that enter the bounds.

    Args:
        stack: One member for each seed and width.
        widths: Number of widths of each seed.

    Returns:
        ``token_norm``, of the largest token of each seed and at least 1; ``head_norm``, of the largest head at the
        start.
    """
    token_norm = stack.tokens.norm(dim=3).amax((1, 2)).clamp(min=1)
    found = {"token_norm": token_norm, "head_norm": network.largest_head_norm(stack.start)}
    return {name: values[::widths].cpu().numpy() for name, values in found.items()}


def _attention(parameters: Parameters, stack: wide.Stack) -> np.ndarray:
    """Mean attention on relevant tokens, over samples and queries, ``(members, groups)``."""
    weights = layer.attention_weights(parameters, stack.tokens)
    on_relevant = (weights * stack.relevant[:, :, None, None, :]).sum(4)
    return torch.as_tensor(on_relevant.mean((1, 3))).cpu().numpy()
