"""Training on the teacher that looks twice, a part of the experiment on recurrent attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.masks import Training
from attnbook.global_attention.recurrent_networks import looks
from attnbook.global_attention.word_teachers import WordTeacher, softmax
from attnbook.global_attention.word_training import RECURRENCES, Task, WordMember, WordSetup, train_reader

__all__ = ["SECOND_LOOK", "train_second_look"]

SECOND_LOOK = ("product_two", "product_three")
"""Models on the teacher that looks twice."""


def train_second_look(
    task: Task,
    n_samples: int,
    seeds: Sequence[int],
    restarts: int,
    setup: WordSetup,
    training: Training,
    *,
    device: torch.device,
    progress: Sequence[Progress | None],
) -> dict[str, np.ndarray]:
    """Train the models with two and three steps; keep what the best network with three looks at.

    Args:
        task: The teacher that looks twice.
        n_samples: Training sentences.
        seeds: Seeds.
        restarts: Initial weights tried for each seed.
        setup: Sizes.
        training: Steps, batches and step size.
        device: Where to compute.
        progress: Told (steps done, steps in all), one for each model.

    Returns:
        ``second_loss`` and ``second_train_loss (seeds, restarts, models)``, ``second_overlaps`` and
        ``second_shown (4,)``, ``second_looks (steps, words)`` and ``second_truth (2, words)``; the result explains
        them.
    """
    members = [WordMember(task, seed, n_samples, restart=r) for seed in seeds for r in range(restarts)]
    found = [
        train_reader(name, members, setup, training, device=device, progress=told)
        for name, told in zip(SECOND_LOOK, progress, strict=True)
    ]
    losses, train_losses = (
        np.stack([values.reshape(len(seeds), restarts) for values in arrays], axis=-1)
        for arrays in ([t.test_loss[-1] for t in found], [t.train_loss for t in found])
    )
    best = int(found[-1].train_loss.argmin())
    return {
        "second_loss": losses,
        "second_train_loss": train_losses,
        **_watch(found[-1].parameters, best, setup.teacher(task, members[best].seed), members[best].seed, setup),
    }


def _watch(
    parameters: Parameters, member: int, teacher: WordTeacher, seed: int, setup: WordSetup
) -> dict[str, np.ndarray]:
    """Where one network and its teacher look: overlaps over the test sentences, and a typical sentence."""
    sentences = setup.sentences(seed, "test", setup.n_test)
    own = {name: tensor[member : member + 1].cpu() for name, tensor in parameters.items()}
    n_steps = RECURRENCES[SECOND_LOOK[-1]].n_steps
    steps = [look.weights[0].double().numpy() for look in looks(own, to_tensor(sentences[None]), n_steps)]
    first, second = softmax(sentences @ teacher.query), teacher.weights(sentences)
    pairs = ((first, second), (steps[0], first), (steps[-1], second), (steps[-1], first))
    overlaps = np.stack([np.minimum(a, b).sum(-1) for a, b in pairs], axis=-1)
    typical = int(np.abs(overlaps - overlaps.mean(0)).max(-1).argmin())
    return {
        "second_overlaps": overlaps.mean(0),
        "second_shown": overlaps[typical],
        "second_looks": np.stack([step[typical] for step in steps]),
        "second_truth": np.stack([first[typical], second[typical]]),
    }
