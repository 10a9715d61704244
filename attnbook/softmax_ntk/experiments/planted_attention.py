"""Three ways to train a self-attention layer, at equal budget: alternating, joint, and softmax weights alone.

A planted layer, the teacher, labels random sequences; a layer of the same form, the student, is to find it. The
theorem of the paper freezes the second layer, here the values; training them is this book's experiment. Each way
takes the same number of gradients with respect to the key-query matrix; its step sizes are tuned on seeds of their
own, and it is measured on others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import resumable
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.alternating import Trained, train_layers, value_step_unit
from attnbook.softmax_ntk.experiments.planted_settings import PROBLEMS, STARTS, WAYS, Planted, Settings, draw
from attnbook.softmax_ntk.experiments.runs import over_runs, place
from attnbook.softmax_ntk.self_attention import attention_weights

__all__ = ["LATER", "PROBLEMS", "WAYS", "PlantedAttention", "Settings", "measure", "run"]

LATER = ("joint", "joint_from_zero", "alternating")
"""Ways that get a longer budget with the sharp teacher."""
# Relative loss below which a layer counts as fitted.
FITTED = 1e-6


@dataclass(frozen=True)
class PlantedAttention(Result):
    r"""Losses over that of the zero output, and steps to the target; the last axis of most arrays runs over ways.

    Attributes:
        loss: Loss at the recorded steps, ``(problems, ways, seeds, records)``.
        evaluations: Gradients until the target is reached; one more than the budget where it is not,
            ``(problems, ways, seeds)``.
        distance: $\|M-M_*\|_F/\|M_*\|_F$ of the key-query matrix from the teacher's, at the end.
        chosen: The step sizes chosen, ``(problems, ways, 2)``.
        tuned: Mean number of gradients to the target over the tuning seeds, by step size of the key-query matrix, the
            best over step sizes of the values; the grid of Adam is padded by NaN, ``(problems, ways, steps)``.
        condition: Condition number of the values' problem on a layer's own sequences at the shown steps,
            ``(problems, ways, seeds, shown)``.
        milliseconds: Processor time of one step of all measured seeds together, ``(problems, ways)``.
        later_loss: Loss after the longer budget with the sharp teacher, ``(ways, seeds)``, the ways of :data:`LATER`.
        maps: Attention of the first student on its first sequence, first problem,
            ``(ways, shown, length, length)``.
        teacher_map: The teacher's.
    """

    experiment: ClassVar[str] = "softmax_ntk.planted_attention"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    loss: Float[np.ndarray, "problems ways seeds records"]
    evaluations: Float[np.ndarray, "problems ways seeds"]
    distance: Float[np.ndarray, "problems ways seeds"]
    chosen: Float[np.ndarray, "problems ways 2"]
    tuned: Float[np.ndarray, "problems ways steps"]
    condition: Float[np.ndarray, "problems ways seeds shown"]
    milliseconds: Float[np.ndarray, "problems ways"]
    later_loss: Float[np.ndarray, "later seeds"]
    maps: Float[np.ndarray, "ways shown length length"]
    teacher_map: Float[np.ndarray, "length length"]

    @property
    def n_programs(self) -> int:
        """Number of batched programs; each way is tuned and measured on each problem, some get a longer budget."""
        return 2 * len(WAYS) * len(PROBLEMS) + len(LATER)

    @property
    def n_networks(self) -> int:
        """Number of layers trained, those of the tuning and of the longer budget among them."""
        s = self.settings
        tuned = sum(len(s.grid(way)) for way in WAYS) * len(s.tuning_seeds)
        return len(PROBLEMS) * (tuned + len(WAYS) * len(s.seeds)) + len(LATER) * len(s.seeds)

    def of(self, array: str, problem: str, way: str) -> np.ndarray:
        """Return what an array holds for a problem and a way."""
        return getattr(self, array)[PROBLEMS.index(problem), list(WAYS).index(way)]

    def measurements(self) -> dict[str, Measurement]:
        """Return how the ways compare, by claim id."""
        n = len(self.settings.seeds)
        frozen = np.stack([self.of("loss", problem, "frozen")[:, -1] for problem in PROBLEMS], axis=1)
        return {
            "SN-H-frozen": over_runs(n, np.min, min_relative_loss_frozen=frozen),
            "SN-H-known": over_seeds(median_evaluations_known=self.of("evaluations", "plain", "known")),
            "SN-H-alternating": self._ratio("plain", "joint", "alternating"),
            "SN-H-zero": self._ratio("plain", "joint_from_zero", "alternating"),
            "SN-H-rarely": self._ratio("plain", "every_tenth", "alternating"),
            "SN-H-rarely-mean": self._ratio("common_mean", "every_tenth", "alternating"),
            "SN-H-mean": self._ratio("common_mean", "joint", "alternating"),
            "SN-H-mean-zero": self._ratio("common_mean", "joint_from_zero", "alternating"),
            "SN-H-sharp": self._ratio("sharp", "joint_from_zero", "alternating"),
            "SN-H-stuck": Measurement(self._missed("sharp", "joint", "alternating"), n_seeds=n),
            "SN-H-traps": Measurement({f"stuck_{way}": float(n) for way, n in self.n_stuck().items()}, n_seeds=n),
            "SN-H-adam": self._adam(),
            "SN-H-adam-sharp": self._ratio("sharp", "joint_adam", "alternating"),
            "SN-H-adam-mean": self._ratio("common_mean", "joint_adam", "alternating_adam"),
            "SN-H-found": self._found(),
        }

    def n_stuck(self) -> dict[str, int]:
        """Return how many seeds are stuck with the sharp teacher after the longer budget."""
        return {way: int((row > self.settings.stuck).sum()) for way, row in zip(LATER, self.later_loss, strict=True)}

    def _found(self) -> Measurement:
        finders = [way for way in WAYS if WAYS[way].values != "frozen"]
        ways = [list(WAYS).index(way) for way in finders]
        fitted = self.loss[0, ways, :, -1] < FITTED
        by_descent = fitted[[WAYS[way].rule == "descent" for way in finders]].sum()
        distance = np.where(fitted, self.distance[0, ways], 0.0)
        largest = over_runs(len(self.settings.seeds), np.max, max_distance_where_fitted=distance.T)
        counts = {"n_fitted": float(fitted.sum()), "n_fitted_by_plain_descent": float(by_descent)}
        return Measurement({**largest.values, **counts}, largest.spread, largest.n_seeds)

    def _adam(self) -> Measurement:
        """Final losses seed by seed, without a shared mean; and the gradients to the target, which tell otherwise."""
        above, below = (self.of("loss", "plain", way)[:, -1] for way in ("joint_adam", "alternating"))
        final = over_seeds(final_loss_joint_adam_over_alternating=above / below)
        counts = self._ratio("plain", "joint_adam", "alternating")
        return Measurement({**final.values, **counts.values}, {**final.spread, **counts.spread}, final.n_seeds)

    def _ratio(self, problem: str, above: str, below: str) -> Measurement:
        """Gradients to the target, seed by seed; a miss counts as one more than the budget, and is counted."""
        counts = [self.of("evaluations", problem, way) for way in (above, below)]
        ratio = over_seeds(**{f"evaluations_{above}_over_{below}": counts[0] / counts[1]})
        missed = {name: n for name, n in self._missed(problem, above, below).items() if n}
        return Measurement({**ratio.values, **missed}, ratio.spread, ratio.n_seeds)

    def _missed(self, problem: str, *ways: str) -> dict[str, float]:
        return {f"missed_{w}": float((self.of("evaluations", problem, w) > self.settings.steps).sum()) for w in ways}


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
        found = []
        with runtime.threads(1):
            for done, way in enumerate(WAYS, 1):
                found.append(measure(s, problem, way, device=where))
                if inner:
                    inner(done, len(WAYS))
        first = draw(s, problem, s.seeds[:1], where)
        teacher_map = attention_weights(first.teacher, first.tokens[:, :1])[0, 0]
        stacked = {name: np.stack([f[name] for f in found]) for name in found[0]}
        return stacked | {"teacher_map": teacher_map.cpu().numpy()}

    parts = resumable(PROBLEMS, part, settings=s, clock=clock, workdir=workdir, progress=progress)
    first = parts[PROBLEMS[0]]
    arrays = {name: np.stack([p[name] for p in parts.values()]) for name in first if not name.endswith("map")}
    maps = arrays.pop("maps")[0]
    arrays["later_loss"] = arrays["later_loss"][PROBLEMS.index("sharp"), [list(WAYS).index(way) for way in LATER]]
    return PlantedAttention(
        settings=s, provenance=clock.provenance(where), maps=maps, teacher_map=first["teacher_map"], **arrays
    )


def measure(s: Settings, problem: str, way: str, *, device: torch.device) -> dict[str, np.ndarray]:
    """Choose the step sizes of one way on one problem, then train the seeds that are measured.

    Args:
        s: Sizes, grids and seeds.
        problem: One of :data:`PROBLEMS`.
        way: One of :data:`WAYS`.
        device: Where to train.

    Returns:
        What :class:`PlantedAttention` holds for this problem and way, by name.

    Raises:
        ValueError: If the problem or the way is unknown.
    """
    for name, value, known in (("problem", problem, PROBLEMS), ("way", way, WAYS)):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    tuning, measured = (draw(s, problem, seeds, device) for seeds in (s.tuning_seeds, s.seeds))
    best, tuned = _tune(s, way, tuning)
    start = time.process_time()
    trained = _train(s, way, measured, [best] * len(s.seeds), keep=s.shown_steps)
    spent = time.process_time() - start
    distance = (trained.key_query - measured.teacher).norm(dim=(1, 2)) / measured.teacher.norm(dim=(1, 2))
    long = replace(s, steps=s.long_steps, shown_steps=())
    later = way in LATER and problem == "sharp"
    tensors = {
        "later_loss": _train(long, way, measured, [best] * len(s.seeds)).loss[-1] if later else trained.loss[-1],
        "loss": trained.loss[s.records.astype(int)].T,
        "distance": distance,
        "maps": torch.stack([trained.weights[step][0] for step in s.shown_steps]),
        "condition": torch.stack([trained.condition[step] for step in s.shown_steps], dim=1),
    }
    return {name: t.cpu().numpy() for name, t in tensors.items()} | {
        "evaluations": _steps_to(trained.loss, s.target),
        "chosen": np.array(best),
        "tuned": tuned,
        "milliseconds": np.array(1e3 * spent / s.steps),
    }


def _tune(s: Settings, way: str, tuning: Planted) -> tuple[tuple[float, float], np.ndarray]:
    """Return the best pair of step sizes, and what each step size of the key-query matrix gave."""
    grid = s.grid(way)
    tried = _train(s, way, tuning.repeat(len(grid)), grid * len(s.tuning_seeds)).loss
    mean = _steps_to(tried, s.target).reshape(len(s.tuning_seeds), len(grid)).mean(axis=0)
    final = tried[-1].log().cpu().numpy().reshape(-1, len(grid)).mean(axis=0)
    best = grid[int(np.lexsort((final, mean))[0])]
    tuned = np.full(max(len(s.key_query_steps), len(s.adam_steps)), np.nan)
    by_step = mean.reshape(len({pair[0] for pair in grid}), -1).min(axis=1)
    tuned[: len(by_step)] = by_step
    return best, tuned


def _train(
    s: Settings, way: str, data: Planted, pairs: Sequence[tuple[float, float]], keep: Sequence[int] = ()
) -> Trained:
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
