"""Three ways to train a self-attention layer, at equal budget: alternating, joint, and softmax weights alone.

A planted layer, the teacher, labels random sequences; a layer of the same form, the student, is to find it. The
theorem of the paper freezes the second layer, here the values; training them is this book's experiment. Each way
takes the same number of gradients with respect to the key-query matrix; its step sizes are tuned on seeds of their
own, and it is measured on others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds, ratio_over_seeds
from attnbook.core.resuming import check_seeds, resumable
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import over_runs, place
from attnbook.softmax_ntk.models.alternating import Way, train_layers, value_step_unit
from attnbook.softmax_ntk.models.self_attention import attention_weights, draw_layer, loss_and_gradients, outputs

__all__ = ["PROBLEMS", "STARTS", "WAYS", "PlantedAttention", "Settings", "run"]

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
# Relative loss below which a layer counts as fitted.
FITTED = 1e-6


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
    value_steps: tuple[float, ...] = (0.25, 0.5, 1.0)
    adam_steps: tuple[float, ...] = (0.03, 0.05, 0.1, 0.2, 0.4)
    shown_steps: tuple[int, ...] = (0, 3, 10, 30, 60, 100, 200)
    n_records: int = 40
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
            n_sequences=7, length=5, dimension=3, n_outputs=2, steps=12, target=0.5, key_query_steps=(0.2, 0.5),
            value_steps=(0.5, 1.0), adam_steps=(0.1,), shown_steps=(0, 12), n_records=5, tuning_seeds=(100,),
            seeds=(0, 1),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_sequences=256, length=16, dimension=11, n_outputs=7, steps=1000, shown_steps=(0, 10, 100, 1000))

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


class Planted(NamedTuple):
    """Sequences with the labels of a teacher, and where a student may start; all with a member axis."""

    tokens: Tensor
    labels: Tensor
    new_tokens: Tensor
    new_labels: Tensor
    teacher: Tensor
    key_query: Tensor
    values: dict[str, Tensor]

    def repeat(self, times: int) -> Planted:
        """Return each member so many times, one after the other."""
        *tensors, values = self
        return Planted(
            *(t.repeat_interleave(times, 0) for t in tensors),
            {name: v.repeat_interleave(times, 0) for name, v in values.items()},
        )


@dataclass(frozen=True)
class PlantedAttention(Result):
    r"""Losses over that of the zero output, and steps to the target; the last axis of most arrays runs over ways.

    Attributes:
        loss: Loss at the recorded steps, ``(problems, ways, seeds, records)``.
        evaluations: Gradients until the target is reached; one more than the budget where it is not,
            ``(problems, ways, seeds)``.
        new_loss: Loss on as many new sequences at the end.
        distance: $\|M-M_*\|_F/\|M_*\|_F$ of the key-query matrix from the teacher's, at the end.
        chosen: The step sizes chosen, ``(problems, ways, 2)``.
        tuned: Mean number of gradients to the target over the tuning seeds, by step size of the key-query matrix, the
            best over step sizes of the values; the grid of Adam is padded by NaN, ``(problems, ways, steps)``.
        milliseconds: Processor time of one step of all measured seeds together, ``(problems, ways)``.
        maps: Attention of the first student on its first sequence, first problem,
            ``(ways, shown, length, length)``.
        teacher_map: The teacher's.
    """

    experiment: ClassVar[str] = "softmax_ntk.planted_attention"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    loss: Float[np.ndarray, "problems ways seeds records"]
    evaluations: Float[np.ndarray, "problems ways seeds"]
    new_loss: Float[np.ndarray, "problems ways seeds"]
    distance: Float[np.ndarray, "problems ways seeds"]
    chosen: Float[np.ndarray, "problems ways 2"]
    tuned: Float[np.ndarray, "problems ways steps"]
    milliseconds: Float[np.ndarray, "problems ways"]
    maps: Float[np.ndarray, "ways shown length length"]
    teacher_map: Float[np.ndarray, "length length"]

    @property
    def n_programs(self) -> int:
        """Number of batched programs: each way is tuned and measured on each problem."""
        return 2 * len(WAYS) * len(PROBLEMS)

    @property
    def n_networks(self) -> int:
        """Number of layers trained, those of the tuning among them."""
        s = self.settings
        return len(PROBLEMS) * sum(len(s.grid(way)) * len(s.tuning_seeds) + len(s.seeds) for way in WAYS)

    def of(self, array: str, problem: str, way: str) -> np.ndarray:
        """Return what an array holds for a problem and a way."""
        return getattr(self, array)[PROBLEMS.index(problem), list(WAYS).index(way)]

    def measurements(self) -> dict[str, Measurement]:
        """Return how the ways compare, by claim id."""
        n = len(self.settings.seeds)
        final = {way: self.of("loss", "plain", way)[:, -1] for way in WAYS}
        missed = {
            f"missed_{way}": float((self.of("evaluations", "sharp", way) > self.settings.steps).sum())
            for way in ("joint", "alternating")
        }
        return {
            "SN-H-frozen": over_runs(n, np.min, min_relative_loss_frozen=final["frozen"]),
            "SN-H-known": over_seeds(median_evaluations_known=self.of("evaluations", "plain", "known")),
            "SN-H-alternating": self._ratio("plain", "joint", "alternating"),
            "SN-H-zero": self._ratio("plain", "joint_from_zero", "alternating"),
            "SN-H-rarely": self._ratio("plain", "every_tenth", "alternating"),
            "SN-H-mean": self._ratio("common_mean", "joint", "alternating"),
            "SN-H-mean-zero": self._ratio("common_mean", "joint_from_zero", "alternating"),
            "SN-H-sharp": self._ratio("sharp", "joint_from_zero", "alternating"),
            "SN-H-stuck": Measurement(missed, n_seeds=n),
            "SN-H-adam": ratio_over_seeds(
                "final_loss_joint_adam_over_alternating", final["joint_adam"], final["alternating"]
            ),
            "SN-H-adam-mean": self._ratio("common_mean", "joint_adam", "alternating_adam"),
            "SN-H-found": self._found(),
        }

    def _found(self) -> Measurement:
        ways = [i for i, way in enumerate(WAYS.values()) if way.values != "frozen"]
        fitted = self.loss[0, ways, :, -1] < FITTED
        distance = np.where(fitted, self.distance[0, ways], 0.0)
        largest = over_runs(len(self.settings.seeds), np.max, max_distance_where_fitted=distance.T)
        return Measurement({**largest.values, "n_fitted": float(fitted.sum())}, largest.spread, largest.n_seeds)

    def _ratio(self, problem: str, above: str, below: str) -> Measurement:
        counts = (self.of("evaluations", problem, way) for way in (above, below))
        return ratio_over_seeds(f"evaluations_{above}_over_{below}", *counts)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> PlantedAttention:
    """Tune and train all ways on all problems.

    Args:
        settings: Sizes, grids and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (ways done, ways in all).
        workdir: Folder that keeps finished problems, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(problem: str, inner: Progress | None) -> dict[str, np.ndarray]:
        tuning, measured = (draw(s, problem, seeds, where) for seeds in (s.tuning_seeds, s.seeds))
        found = []
        with runtime.threads(1):
            for done, way in enumerate(WAYS, 1):
                found.append(_measure(s, way, tuning, measured))
                if inner:
                    inner(done, len(WAYS))
        teacher_map = attention_weights(measured.teacher[:1], measured.tokens[:1, :1])[0, 0]
        stacked = {name: np.stack([f[name] for f in found]) for name in found[0]}
        return stacked | {"teacher_map": teacher_map.cpu().numpy()}

    parts = resumable(PROBLEMS, part, settings=s, clock=clock, workdir=workdir, progress=progress)
    first = parts[PROBLEMS[0]]
    arrays = {name: np.stack([p[name] for p in parts.values()]) for name in first if not name.endswith("map")}
    maps = arrays.pop("maps")[0]
    return PlantedAttention(
        settings=s, provenance=clock.provenance(where), maps=maps, teacher_map=first["teacher_map"], **arrays
    )


def draw(s: Settings, problem: str, seeds: Sequence[int], device: torch.device) -> Planted:
    """Draw teachers, sequences, labels and starts of some seeds."""
    each = [_draw_one(s, problem, seed) for seed in seeds]
    t = {name: to_tensor(np.stack([e[name] for e in each]), device=device, dtype=torch.float64) for name in each[0]}
    labels, new_labels = (outputs(t["teacher"], t["value"], t[name]) for name in ("tokens", "new_tokens"))
    values = {
        "random": t["random"],
        "zero": torch.zeros_like(t["value"]),
        "signs": t["random"].sign() / s.dimension**0.5,
        "teacher": t["value"],
    }
    return Planted(t["tokens"], labels, t["new_tokens"], new_labels, t["teacher"], t["key_query"], values)


def _draw_one(s: Settings, problem: str, seed: int) -> dict[str, np.ndarray]:
    sharpness = s.sharper if problem == "sharp" else s.sharpness
    teacher = draw_layer(s.dimension, s.n_outputs, rng=stream(seed, "teacher", s.dimension), sharpness=sharpness)
    rng = stream(seed, "student", s.dimension)
    student = draw_layer(s.dimension, s.n_outputs, rng=rng, sharpness=s.start_sharpness)
    mean = stream(seed, "mean", s.dimension).standard_normal(s.dimension)
    mean *= (s.mean_norm if problem == "common_mean" else 0.0) / np.linalg.norm(mean)
    shape = (s.n_sequences, s.length, s.dimension)
    rng = stream(seed, "sequences", *shape)
    tokens, new_tokens = (rng.standard_normal(shape) + mean for _ in range(2))
    return {
        "tokens": tokens, "new_tokens": new_tokens, "teacher": teacher.key_query, "value": teacher.value,
        "key_query": student.key_query, "random": student.value,
    }  # fmt: skip


def _measure(s: Settings, way: str, tuning: Planted, measured: Planted) -> dict[str, np.ndarray]:
    """Choose the step sizes of a way, then train the seeds that are measured."""
    grid = s.grid(way)
    tried = _train(s, way, tuning.repeat(len(grid)), grid * len(s.tuning_seeds)).loss
    mean = _steps_to(tried, s.target).reshape(len(s.tuning_seeds), len(grid)).mean(axis=0)
    final = tried[-1].log().cpu().numpy().reshape(-1, len(grid)).mean(axis=0)
    best = grid[int(np.lexsort((final, mean))[0])]
    tuned = np.full(max(len(s.key_query_steps), len(s.adam_steps)), np.nan)
    by_step = mean.reshape(len({pair[0] for pair in grid}), -1).min(axis=1)
    tuned[: len(by_step)] = by_step
    start = time.process_time()
    trained = _train(s, way, measured, [best] * len(s.seeds), keep=s.shown_steps)
    spent = time.process_time() - start
    new = loss_and_gradients(trained.key_query, trained.value, measured.new_tokens, measured.new_labels).loss
    zero = measured.new_labels.square().sum((1, 2)) / (2 * measured.new_labels.shape[1])
    distance = (trained.key_query - measured.teacher).norm(dim=(1, 2)) / measured.teacher.norm(dim=(1, 2))
    tensors = {
        "loss": trained.loss[s.records.astype(int)].T,
        "new_loss": new / zero,
        "distance": distance,
        "maps": torch.stack([trained.weights[step][0] for step in s.shown_steps]),
    }
    return {name: t.cpu().numpy() for name, t in tensors.items()} | {
        "evaluations": _steps_to(trained.loss, s.target),
        "chosen": np.array(best),
        "tuned": tuned,
        "milliseconds": np.array(1e3 * spent / s.steps),
    }


def _train(s: Settings, way: str, data: Planted, pairs: Sequence[tuple[float, float]], keep: Sequence[int] = ()):  # noqa: ANN202
    sizes = to_tensor(np.array(pairs), device=data.tokens.device, dtype=torch.float64)
    unit = value_step_unit(data.tokens) if WAYS[way].rule == "descent" else 1.0
    value = data.values[STARTS.get(way, "zero")]
    return train_layers(
        data.key_query, value, data.tokens, data.labels, way=WAYS[way], key_query_step=sizes[:, 0],
        value_step=sizes[:, 1] * unit, steps=s.steps, keep=keep,
    )  # fmt: skip


def _steps_to(loss: Tensor, target: float) -> np.ndarray:
    """Steps until each loss is first at the target; the number of records where it never is."""
    there = (loss <= target).cpu().numpy()
    return np.where(there.any(axis=0), there.argmax(axis=0), len(there)).astype(float)
