"""What the experiment on planted self-attention layers is made of: ways, problems, settings and data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.alternating import Way
from attnbook.softmax_ntk.self_attention import draw_layer, outputs

__all__ = ["PROBLEMS", "STARTS", "WAYS", "Planted", "Settings", "draw"]

WAYS: Mapping[str, Way] = {
    "alternating": Way("solved"),
    "every_tenth": Way("solved", every=10),
    "joint": Way("trained"),
    "joint_from_zero": Way("trained"),
    "frozen": Way("frozen"),
    "known": Way("frozen"),
    "alternating_adam": Way("solved", rule="adam"),
    "joint_adam": Way("trained", rule="adam"),
}
"""Name to way of training."""
STARTS: Mapping[str, str] = {
    "joint": "random",
    "joint_from_zero": "zero",
    "frozen": "signs",
    "known": "teacher",
    "joint_adam": "zero",
}
"""Name to where the values start; where they are solved for they need no start."""
PROBLEMS = ("plain", "common_mean", "sharp")
"""Standard normal tokens; the same with a mean that all tokens share; a teacher with sharper attention."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_sequences: Training sequences of a layer.
        length: Tokens of a sequence.
        dimension: Entries of a token.
        n_outputs: Outputs of the layer.
        sharpness: Standard deviation of the teacher's logits.
        sharper: The same in the problem ``sharp``.
        mean_norm: Norm of the mean that all tokens share in the problem ``common_mean``.
        start_sharpness: Standard deviation of the student's logits at the start.
        steps: Gradients with respect to the key-query matrix: the budget.
        target: Loss to reach, relative to that of the zero output.
        key_query_steps: Step sizes that are tried.
        value_steps: Step sizes of the values that are tried, in units of one over the largest eigenvalue of the
            tokens' second moments.
        adam_steps: Learning rates that are tried, the same for both matrices.
        shown_steps: Steps at which attention is kept for the picture.
        n_records: Number of recorded losses, log-spaced; those of the shown steps are added.
        long_steps: A longer budget, for the sharp teacher: who missed the target, does it arrive later?
        stuck: Relative loss above which a layer counts as stuck after the longer budget.
        tuning_seeds: Seeds on which step sizes are chosen.
        seeds: Seeds that are measured.
    """

    n_sequences: int = 16
    length: int = 8
    dimension: int = 5
    n_outputs: int = 3
    sharpness: float = 2.0
    sharper: float = 8.0
    mean_norm: float = 2.0
    start_sharpness: float = 0.1
    steps: int = 200
    target: float = 1e-2
    key_query_steps: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.3)
    value_steps: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    adam_steps: tuple[float, ...] = (0.03, 0.05, 0.1, 0.2, 0.4)
    shown_steps: tuple[int, ...] = (0, 3, 10, 30, 60, 100, 200)
    n_records: int = 40
    long_steps: int = 1000
    stuck: float = 0.1
    tuning_seeds: tuple[int, ...] = (100, 101, 102, 103)
    seeds: tuple[int, ...] = tuple(range(12))

    def __post_init__(self) -> None:
        check_seeds(self.seeds, 1)
        if set(self.seeds) & set(self.tuning_seeds) or not self.tuning_seeds:
            raise ValueError(f"tuning_seeds: expected some, none of them measured, got {self.tuning_seeds}")
        if not 0 < self.target < 1:
            raise ValueError(f"target: expected a fraction of the loss of the zero output, got {self.target}")
        if not set(self.shown_steps) <= set(range(self.steps + 1)):
            raise ValueError(f"shown_steps: expected steps from 0 to {self.steps}, got {self.shown_steps}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_sequences=7, length=5, dimension=3, n_outputs=2, steps=12, target=1e-3, key_query_steps=(0.2, 0.5),
            value_steps=(0.5, 1.0), adam_steps=(0.1,), shown_steps=(0, 12), n_records=5, long_steps=20,
            tuning_seeds=(100,), seeds=(0, 1),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            n_sequences=256,
            length=16,
            dimension=11,
            n_outputs=7,
            steps=1000,
            long_steps=5000,
            shown_steps=(0, 10, 100, 1000),
        )

    @property
    def records(self) -> Float[np.ndarray, " records"]:
        """Steps at which losses are recorded."""
        spaced = np.geomspace(1, self.steps + 1, self.n_records).round() - 1
        return np.union1d(spaced, np.array(self.shown_steps))

    def grid(self, way: str) -> list[tuple[float, float]]:
        """Return the pairs of step sizes that are tried for a way."""
        if WAYS[way].rule == "adam":
            return [(rate, rate) for rate in self.adam_steps]
        values = self.value_steps if WAYS[way].values == "trained" else (0.0,)
        return list(itertools.product(self.key_query_steps, values))


@dataclass(frozen=True)
class Planted:
    """Sequences with the labels of a teacher, and where a student may start; all with a member axis.

    Attributes:
        tokens: Training sequences, ``(members, sequences, length, dimension)``.
        labels: The teacher's outputs, ``(members, rows, outputs)``.
        teacher: Its key-query matrices.
        key_query: Where the students' start.
        values: Name of a start to values, as in :data:`STARTS`.
    """

    tokens: Tensor
    labels: Tensor
    teacher: Tensor
    key_query: Tensor
    values: dict[str, Tensor]

    def repeat(self, times: int) -> Planted:
        """Return each member so many times, one after the other."""
        tensors = {
            f.name: getattr(self, f.name).repeat_interleave(times, 0) for f in fields(self) if f.name != "values"
        }
        return Planted(**tensors, values={name: v.repeat_interleave(times, 0) for name, v in self.values.items()})


def draw(s: Settings, problem: str, seeds: Sequence[int], device: torch.device) -> Planted:
    """Draw teachers, sequences, labels and starts of some seeds."""
    each = [_draw_one(s, problem, seed) for seed in seeds]
    t = {name: to_tensor(np.stack([e[name] for e in each]), device=device, dtype=torch.float64) for name in each[0]}
    labels = outputs(t["teacher"], t["value"], t["tokens"])
    values = {
        "random": t["random"],
        "zero": torch.zeros_like(t["value"]),
        "signs": t["random"].sign() / s.dimension**0.5,
        "teacher": t["value"],
    }
    return Planted(t["tokens"], labels, t["teacher"], t["key_query"], values)


def _draw_one(s: Settings, problem: str, seed: int) -> dict[str, np.ndarray]:
    sharpness = s.sharper if problem == "sharp" else s.sharpness
    teacher = draw_layer(s.dimension, s.n_outputs, rng=stream(seed, "teacher", s.dimension), sharpness=sharpness)
    rng = stream(seed, "student", s.dimension)
    student = draw_layer(s.dimension, s.n_outputs, rng=rng, sharpness=s.start_sharpness)
    mean = stream(seed, "mean", s.dimension).standard_normal(s.dimension)
    mean *= (s.mean_norm if problem == "common_mean" else 0.0) / np.linalg.norm(mean)
    shape = (s.n_sequences, s.length, s.dimension)
    tokens = stream(seed, "sequences", *shape).standard_normal(shape) + mean
    return {
        "tokens": tokens, "teacher": teacher.key_query, "value": teacher.value,
        "key_query": student.key_query, "random": student.value,
    }  # fmt: skip
