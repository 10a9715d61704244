r"""Logistic regression on separable data. A sample is $z=yx$, input times label: right is $w^\top z>0$."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.core.runtime import Progress

__all__ = ["descend", "draw_samples"]

MARGIN, SPREAD = 0.5, 1.5  # distance of the nearest samples from the best line; deviation of samples along it


def draw_samples(n_samples: int, clearance: float, seed: int) -> Float[np.ndarray, "samples 2"]:
    """Draw samples in the plane, and around the line through the origin, of random direction, with the largest margin.

    Args:
        n_samples: At least 2; two support the line, one on each side along it.
        clearance: At least 1: the others are at least that many margins from the line, and an exponential draw more.
        seed: Of the draws.

    Returns:
        Products of inputs and labels.

    Raises:
        ValueError: If a number is outside its range.
    """
    if n_samples < 2 or clearance < 1:
        raise ValueError(f"n_samples, clearance: expected at least 2 and 1, got {n_samples} and {clearance}")
    rng = stream(seed, "separable samples")
    across, along = clearance * MARGIN + rng.exponential(size=n_samples), SPREAD * rng.standard_normal(n_samples)
    across[:2], along[:2] = MARGIN, np.abs(along[:2]) * [1, -1]
    angle = 2 * np.pi * rng.random()
    return np.stack([across, along], axis=1) @ [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]


def descend(
    samples: Float[np.ndarray, "*problems samples axes"], step_size: float, record: Sequence[int],
    device: torch.device | str = "cpu", progress: Progress | None = None,
) -> tuple[Float[np.ndarray, "records *problems axes"], Float[np.ndarray, "*records_and_problems"]]:  # fmt: skip
    r"""Run gradient descent on the mean of $\log(1+e^{-w^\top z})$ from zero, in float64.

    Args:
        samples: Those of many problems.
        step_size: The same in every step, positive.
        record: Increasing numbers of steps.
        device: Where to compute.
        progress: Told (records done, records in all); may be None.

    Returns:
        Weights after these steps, and the loss at them.

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 < step_size < float("inf"):
        raise ValueError(f"step_size: expected a positive number, got {step_size}")
    if not len(record) or list(record) != sorted(set(record)) or record[0] < 0:
        raise ValueError(f"record: expected increasing numbers of steps, none negative, got {list(record)}")
    z = torch.tensor(samples, dtype=torch.float64, device=device)
    w, kept, done = torch.zeros_like(z[..., 0, :]), [], 0
    for number, step in enumerate(record, 1):
        for _ in range(step - done):
            pull = torch.sigmoid(-torch.einsum("...sa,...a->...s", z, w))
            w = w + step_size / z.shape[-2] * torch.einsum("...s,...sa->...a", pull, z)
        loss = torch.nn.functional.softplus(-torch.einsum("...sa,...a->...s", z, w)).mean(-1)
        kept.append((w.cpu().numpy(), loss.cpu().numpy()))
        done = step
        if progress:
            progress(number, len(record))
    return np.stack([weights for weights, _ in kept]), np.stack([loss for _, loss in kept])
