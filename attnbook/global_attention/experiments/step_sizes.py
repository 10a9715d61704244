"""Step sizes of the experiment on recurrent attention, chosen for each model and teacher on seeds of their own.

:data:`TRIED` records what :func:`try_step_sizes` found once at book scale; the experiment takes its step sizes from it.
Some of the best lie at an end of the grid: the smallest where the best answer is to learn nothing, the largest for
mean pooling where all words weigh the same.

Two more step sizes are single choices. For the teacher that looks twice 0.003, 0.01 and 0.03 were tried on seeds 10 to
14 with three restarts: 0.01 has the smallest median error with three steps, and with two steps all three end at the
same error. For penalties on attention 0.01, 0.03 and 0.1 were tried on seeds 10 to 15 without a penalty: 0.01 has the
smallest median error for the peaked and for the spread teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from attnbook.global_attention.masks import Training
from attnbook.global_attention.word_training import Task, WordMember, WordSetup, train_reader

__all__ = ["GRID", "SIZE", "STEPS", "TRIED", "TRIED_SEEDS", "chosen_step_sizes", "try_step_sizes"]

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Step sizes of Adam that were tried."""
TRIED_SEEDS = (10, 11, 12, 13, 14)
"""Seeds on which they were tried; the experiment uses others."""
SIZE, STEPS = 300, 600
"""Training sentences and steps of the trial."""

TRIED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "attention": {
        "flat": (1.18, 1.33, 1.33, 1.35, 1.35, 1.68),
        "mean": (0.932, 0.918, 0.945, 0.968, 0.984, 0.934),
        "one_step": (0.819, 0.111, 0.0382, 0.0198, 0.0291, 0.868),
        "two_steps": (0.843, 0.116, 0.0385, 0.0172, 0.0159, 0.643),
        "three_steps": (0.239, 0.0993, 0.041, 0.0159, 0.0582, 1.01),
        "known": (0.205, 0.0588, 0.0122, 0.00404, 0.00375, 0.0564),
    },
    "position": {
        "flat": (0.443, 0.4, 0.305, 0.197, 0.26, 0.428),
        "mean": (0.793, 0.799, 0.876, 0.901, 0.895, 0.868),
        "one_step": (0.837, 0.827, 0.926, 1.11, 1.06, 1.15),
    },
    "equal": {
        "flat": (0.377, 0.323, 0.246, 0.186, 0.214, 0.339),
        "mean": (0.247, 0.0327, 0.00642, 0.00248, 0.000903, 0.000532),
        "one_step": (0.358, 0.0525, 0.0106, 0.00429, 0.00143, 0.00357),
    },
}
"""Median test error of each step size in :data:`GRID`, by teacher and model."""


def chosen_step_sizes(teacher: str, models: Sequence[str]) -> tuple[float, ...]:
    """Return the step size with the smallest recorded median error for each model.

    Args:
        teacher: A teacher in :data:`TRIED`.
        models: Models tried on it.

    Returns:
        Their step sizes.

    Example:
        >>> chosen_step_sizes("attention", ["three_steps"])
        (0.03,)
    """
    return tuple(GRID[int(np.argmin(TRIED[teacher][model]))] for model in models)


def try_step_sizes(
    model: str,
    task: Task,
    setup: WordSetup,
    *,
    device: torch.device,
    steps: int = STEPS,
    batch_size: int = 32,
    grid: Sequence[float] = GRID,
) -> tuple[float, ...]:
    """Train a model with each step size, and return the median test errors.

    Args:
        model: A model of sentences.
        task: Its teacher.
        setup: Sizes.
        device: Where to train.
        steps: Number of steps; default that of the record.
        batch_size: Sentences per step; default that of the experiment.
        grid: Step sizes to try; default those of the record.

    Returns:
        The median over :data:`TRIED_SEEDS` for each step size; infinity where a network diverged.
    """
    members = [WordMember(task, seed, SIZE) for seed in TRIED_SEEDS]
    medians = []
    for step_size in grid:
        training = Training(steps, batch_size, step_size, (steps,), decay=True)
        try:
            losses = train_reader(model, members, setup, training, device=device).test_loss[-1]
        except FloatingPointError:
            losses = np.full(len(members), np.inf)
        medians.append(float(np.median(losses)))
    return tuple(medians)
