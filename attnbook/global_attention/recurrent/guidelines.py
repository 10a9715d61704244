"""The paper's guidelines on penalties (Appendix D.1) as curves: error against strength for attention with one step.

The paper has no experiment on them. Penalties on a mask are tried where masks are, in other chapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress, share
from attnbook.core.settings import check_increasing
from attnbook.global_attention.masks import Training
from attnbook.global_attention.recurrent.word_training import Task, WordMember, WordSetup, train_reader
from attnbook.global_attention.recurrent_networks import Penalty

__all__ = ["PENALTIES", "TEACHERS", "Guidelines", "at_best_strength", "chosen"]

PENALTIES: tuple[Penalty, ...] = ("entropy", "l1_scores", "l2_weights")  # "l1_weights" is constant: nothing to train
TEACHERS = ("peaked", "spread")


@dataclass(frozen=True, kw_only=True)
class Guidelines(Experiment):
    """Errors against clean labels in units of their variance, and on noisy training labels."""

    id = "global_attention.guidelines"
    summary = "Guidelines: error against the strength of penalties on attention and on all weights"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {
        "n_sentences": 30, "n_test": 40, "penalties": (1e-4, 1e-2), "strengths": (1e-2, 1.0), "steps": 4,
        "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    n_words: int = 10  # words of a sentence
    dimension: int = 6  # entries of a word
    sharpness: tuple[float, float] = (6.0, 0.5)  # standard deviation of the scores of a peaked and a spread teacher
    teacher_width: int = 8  # hidden units of the teachers
    width: int = 32  # hidden units of the two layers of the networks
    noise: float = 0.5  # standard deviation of the label noise; the clean labels have 1
    n_sentences: int = 200  # training sentences
    n_test: int = 1000  # held-out sentences
    penalties: tuple[float, ...] = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # L2 on all weights, increasing
    strengths: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # of the penalties on attention, increasing
    step_size: float = 0.01  # of Adam, falling to zero along a cosine; of 0.01, 0.03, 0.1 the best on seeds 10 to 15
    batch_size: int = 64  # sentences per step
    steps: int = 400  # of training
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    chunk: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "penalties", "strengths", least=2)

    def coordinates(self) -> dict[str, Any]:
        """Name teachers, kinds of penalty and strengths."""
        return {
            "penalty": list(self.penalties), "teacher": list(TEACHERS), "kind": list(PENALTIES),
            "strength": list(self.strengths),
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train attention with one step along all penalties, one program for each kind."""
        setup = WordSetup(self.n_words, self.dimension, self.teacher_width, self.width, self.n_test)
        training = Training(self.steps, self.batch_size, self.step_size, (self.steps,), decay=True)
        tasks = [Task("attention", sharpness, self.noise) for sharpness in self.sharpness]
        told = (share(progress, i, len(PENALTIES) + 1) for i in range(len(PENALTIES) + 1))

        def train(
            strengths: tuple[float, ...], penalties: tuple[float, ...], kind: Penalty = "entropy"
        ) -> tuple[np.ndarray, np.ndarray]:
            cases = product(seeds, tasks, strengths, penalties)
            members = [WordMember(task, seed, self.n_sentences, one, other) for seed, task, one, other in cases]
            found = train_reader("one_step", members, setup, training, device=device, penalty=kind, progress=next(told))
            shape = (len(seeds), len(tasks), -1)
            return found.test_loss.reshape(shape), found.train_loss.reshape(shape)

        paths = np.stack([train((0.0, *self.strengths), (0.0,), kind)[0] for kind in PENALTIES], axis=2)
        shrunk, fitted = train((0.0,), self.penalties)
        axes = ("seed", "teacher")
        return {
            "attention_loss": ((*axes, "kind", "strength"), paths[..., 1:]),
            "free_attention_loss": (axes, paths[:, :, 0, 0]),
            "l2_attention_loss": ((*axes, "penalty"), shrunk),
            "l2_attention_train_loss": ((*axes, "penalty"), fitted),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Return what the guideline picks where a network fits, and what penalties on attention do to whom."""
        test, train, free = data.l2_attention_loss, data.l2_attention_train_loss, data.free_attention_loss
        picked, fits = test.isel(penalty=chosen(train, self.noise)), train.min("penalty") <= self.noise**2
        over = {"over_best": picked / test.min("penalty"), "over_free": picked / free}
        guided = {name: ratio.where(fits).median("seed").fillna(np.inf) for name, ratio in over.items()}
        guided["fitted"] = fits.mean("seed")
        paths = data.attention_loss / free
        best, strongest = at_best_strength(paths), paths.isel(strength=-1)
        peaked, spread = best.sel(teacher="peaked", kind="entropy"), best.sel(teacher="spread")
        return {
            "GA-G1-l2-attention": {
                f"{name}_{label}": found.sel(teacher=label) for label in TEACHERS for name, found in guided.items()
            },
            "GA-G1-sparse-attention": {"best_entropy": peaked, "helped_entropy": (peaked < 1).mean()},
            "GA-X-attention-penalties": {
                "best_l1_scores": spread.sel(kind="l1_scores"), "best_l2_weights": spread.sel(kind="l2_weights"),
                "strongest_entropy": strongest.sel(teacher="spread", kind="entropy"),
            },
        }  # fmt: skip


def chosen(train_loss: xr.DataArray, noise: float) -> xr.DataArray:
    """Return the place of the L2 weight that "as large as possible, as long as in-sample prediction is nice" picks.

    Read as: the largest weight whose training error is at most the variance of the noise; the smallest where none is.
    """
    places = xr.DataArray(np.arange(train_loss.sizes["penalty"]), dims="penalty")
    return places.where(train_loss <= noise**2, 0).max("penalty").astype(int)


def at_best_strength(ratios: xr.DataArray) -> xr.DataArray:
    """Keep of errors over those without a penalty the strength with the smallest median over seeds."""
    return ratios.isel(strength=ratios.median("seed").argmin("strength"))
