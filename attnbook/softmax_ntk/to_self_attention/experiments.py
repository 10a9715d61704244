"""The experiments of the chapter: what a layer has of the two-layer network, and ways to train a planted one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.alternating import Trained, Way, train_layers, value_step_unit
from attnbook.softmax_ntk.self_attention import draw_layer, outputs
from attnbook.softmax_ntk.sweeps import each

WAYS = {
    "alternating": Way("solved"),
    "joint": Way("trained"),
    "joint_from_zero": Way("trained"),
    "frozen": Way("frozen"),
    "known": Way("frozen"),
    "alternating_adam": Way("solved", rule="adam"),
    "joint_adam": Way("trained", rule="adam"),
}
STARTS = {"joint": "random", "frozen": "signs", "known": "teacher"}  # of the values; others start at zero
PROBLEMS = ("plain", "common_mean", "sharp")  # the second has a mean that all tokens share, the third a sharper teacher
LATER = ("alternating", "joint", "joint_from_zero")  # ways that get a longer budget with the sharp teacher
FITTED = 1e-6  # relative loss below which a layer counts as fitted
SINGULAR = 1e-12  # eigenvalues below this part of the largest count as zero


@dataclass(frozen=True, kw_only=True)
class LayerAsNetwork(Experiment):
    """Beyond Appendix H.1: the kernel of the softmax weights of a random layer."""

    id = "softmax_ntk.layer_as_network"
    summary = "Rank of the kernel of a layer's softmax weights, against the length of the sequences"
    needs = "cpu"
    budget_seconds = 10
    smoke = {"sequences": 5, "dimension": 3, "lengths": (7, 11), "seeds": (0, 1)}

    sequences: int = 11
    dimension: int = 5  # entries of a token
    outputs: int = 3  # of a token
    lengths: tuple[int, ...] = (7, 14, 28)  # tokens of a sequence

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension**2 >= self.entries:
            raise ValueError(f"sequences: needs more than {self.dimension**2} label entries, got {self.entries}")

    @property
    def entries(self) -> int:
        """Number of label entries of the shortest sequences."""
        return self.sequences * min(self.lengths) * self.outputs

    def coordinates(self) -> dict[str, Any]:
        """Name lengths."""
        return {"length": list(self.lengths)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Take the largest eigenvalues of each kernel, a few more than there are weights."""
        return each(seeds, "seed", lambda seed: each(self.lengths, "length", partial(self._one, seed), None), progress)

    def _one(self, seed: int, length: int) -> Arrays:
        layer = draw_layer(self.dimension, self.outputs, rng=stream(seed, "layer", self.dimension))
        shape = (self.sequences, length, self.dimension)
        drawn = (*layer, stream(seed, "kernel", *shape).standard_normal(shape))
        key_query, value, tokens = (to_tensor(array[None], dtype=torch.float64) for array in drawn)
        jacobian = torch.func.jacrev(lambda m: outputs(m, value, tokens).flatten())(key_query).flatten(1)
        spectrum = torch.linalg.eigvalsh(jacobian @ jacobian.T).abs().sort(descending=True)[0]
        return {"spectrum": (("index",), spectrum[: 2 * self.dimension**2])}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the rank of the kernel at each length."""
        rank = (data.spectrum > SINGULAR * data.spectrum.max("index")).sum("index")
        return {
            "SN-H-kernel": {
                "lowest_rank": lowest(rank), "highest_rank": highest(rank),
                "softmax_weights": xr.DataArray(self.dimension**2), "label_entries": xr.DataArray(self.entries),
            }
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlantedAttention(Experiment):
    """A student layer looks for a teacher layer: values solved, trained or frozen, at equal numbers of gradients.

    Step sizes of each way are chosen on seeds of their own.
    """

    id = "softmax_ntk.planted_attention"
    summary = "Alternating, joint and softmax-only training of a planted self-attention layer at equal budget"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "sequences": 7, "length": 5, "dimension": 3, "outputs": 2, "steps": 12, "target": 1e-3, "long_steps": 20,
        "key_query_steps": (0.2, 0.5), "value_steps": (0.5, 1.0), "adam_steps": (0.1,), "shown_steps": (0, 12),
        "records": 5, "tuning_seeds": (100,), "seeds": (0, 1),
    }  # fmt: skip
    full = {
        "sequences": 256, "length": 16, "dimension": 11, "outputs": 7, "steps": 1000, "long_steps": 5000,
        "shown_steps": (0, 10, 100, 1000), "tuning_seeds": tuple(range(100, 124)),  # with four, half the seeds missed
    }  # fmt: skip

    sequences: int = 16  # training sequences of a layer
    length: int = 8  # tokens of a sequence
    dimension: int = 5  # entries of a token
    outputs: int = 3  # of a token
    sharpness: float = 2.0  # standard deviation of the teacher's logits
    sharper: float = 8.0  # the same in the problem "sharp"
    mean_norm: float = 2.0  # norm of the mean that all tokens share in the problem "common_mean"
    start_sharpness: float = 0.1  # standard deviation of the student's logits at the start
    steps: int = 200  # gradients with respect to the key-query matrix: the budget
    target: float = 1e-2  # loss to reach, relative to that of the zero output
    key_query_steps: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.3)  # step sizes that are tried
    value_steps: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)  # those of the values, over the tokens' largest moment
    adam_steps: tuple[float, ...] = (0.03, 0.05, 0.1, 0.2, 0.4)  # learning rates, the same for both matrices
    shown_steps: tuple[int, ...] = (0, 3, 10, 30, 60, 100, 200)  # at which the values' condition number is kept
    records: int = 24  # recorded losses, log-spaced
    long_steps: int = 1000  # a longer budget with the sharp teacher: does who missed the target arrive later?
    stuck: float = 0.1  # relative loss above which a layer counts as stuck after it
    tuning_seeds: tuple[int, ...] = (100, 101, 102, 103)
    seeds: tuple[int, ...] = tuple(range(24))
    chunk: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        if set(self.seeds) & set(self.tuning_seeds) or not self.tuning_seeds:
            raise ValueError(f"tuning_seeds: expected some, none of them measured, got {self.tuning_seeds}")
        if not 0 < self.target < 1:
            raise ValueError(f"target: expected a fraction of the loss of the zero output, got {self.target}")
        if not set(self.shown_steps) <= set(range(self.steps + 1)):
            raise ValueError(f"shown_steps: expected steps from 0 to {self.steps}, got {self.shown_steps}")

    @property
    def recorded(self) -> list[int]:
        """Steps at which losses are kept."""
        spaced = np.geomspace(1, self.steps + 1, self.records).round() - 1
        return sorted({*spaced.astype(int).tolist(), *self.shown_steps})

    def coordinates(self) -> dict[str, Any]:
        """Name problems, ways, steps and matrices."""
        named = {"problem": list(PROBLEMS), "way": list(WAYS), "later": list(LATER), "matrix": ["key_query", "value"]}
        return named | {"step": self.recorded, "shown": list(self.shown_steps)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Tune and train all ways on all problems."""
        later: list[np.ndarray] = []

        def one(problem: str, way: str) -> Arrays:
            best, data = self.tune(problem, way, device), self.draw(problem, seeds, device)
            trained = self._train(way, data, [best] * len(seeds), self.steps, keep=self.shown_steps)
            if problem == "sharp" and way in LATER:
                longer = self._train(way, data, [best] * len(seeds), self.long_steps)
                later.append(longer.loss[-1].cpu().numpy())
            return self._read(trained, data["teacher"]) | {"chosen": (("seed", "matrix"), [best] * len(seeds))}

        found = each(PROBLEMS, "problem", lambda problem: each(WAYS, "way", partial(one, problem), None), progress)
        return found | {"later_loss": (("later", "seed"), later)}

    def _read(self, trained: Trained, teacher: Tensor) -> Arrays:
        condition = torch.stack([trained.condition[step] for step in self.shown_steps], dim=1)
        distance = (trained.key_query - teacher).norm(dim=(1, 2)) / teacher.norm(dim=(1, 2))
        return {
            "evaluations": (("seed",), steps_to(trained.loss, self.target)),
            "loss": (("seed", "step"), trained.loss[self.recorded].T.cpu()),
            "condition": (("seed", "shown"), condition.cpu()),
            "distance": (("seed",), distance.cpu()),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off who reaches the target, ratios of gradients seed by seed, and who is stuck."""
        reached, final = (data.evaluations <= self.steps).mean("seed"), data.loss.isel(step=-1)
        solved = data.sel(problem="plain", way=[way for way in WAYS if WAYS[way].values != "frozen"])
        fitted = solved.loss.isel(step=-1) < FITTED
        first = data.condition.sel(way="alternating").isel(shown=0)
        stuck = (data.later_loss > self.stuck).mean("seed")

        def over(problem: str, above: str, below: str = "alternating") -> xr.DataArray:
            """Gradients to the target; a miss counts as one more than the budget."""
            counts = data.evaluations.sel(problem=problem)
            return counts.sel(way=above) / counts.sel(way=below)

        return {
            "SN-H-alternating": {
                "share_reached": reached.sel(problem="plain", way="alternating"),
                "share_reached_mean": reached.sel(problem="common_mean", way="alternating"),
                "share_reached_sharp": reached.sel(problem="sharp", way="alternating"),
                "share_fitted": fitted.mean(),
                "distance_where_fitted": highest(solved.distance.where(fitted, 0.0)),
            },
            "SN-H-frozen": {
                "share_reached_signs": reached.sel(way="frozen").max("problem"),
                "loss_signs": final.sel(way="frozen").min("problem"),
                "share_reached_known": reached.sel(way="known").min("problem"),
            },
            "SN-H-mean": {
                "random_over_solved": over("common_mean", "joint"),
                "zero_over_solved": over("common_mean", "joint_from_zero"),
                "zero_over_solved_plain": over("plain", "joint_from_zero"),
                "condition": first.sel(problem="common_mean"), "condition_plain": first.sel(problem="plain"),
            },
            "SN-H-sharp": {
                "zero_over_solved": over("sharp", "joint_from_zero"), "adam_over_solved": over("sharp", "joint_adam"),
                "adam_over_solved_mean": over("common_mean", "joint_adam"),
                "final_adam_over_solved": (final.sel(way="joint_adam") / final.sel(way="alternating")).max("problem"),
                **{f"share_stuck_{way}": stuck.sel(later=way) for way in LATER},
            },
        }  # fmt: skip

    def draw(self, problem: str, seeds: Sequence[int], device: torch.device) -> dict[str, Tensor]:
        """Draw teachers, sequences, labels and starts of some seeds: tensors with an axis for them in front."""
        each = [self._draw_one(problem, seed) for seed in seeds]
        drawn = {
            name: to_tensor(np.stack([e[name] for e in each]), device=device, dtype=torch.float64) for name in each[0]
        }
        values = {
            "values_zero": torch.zeros_like(drawn["values_teacher"]),
            "values_signs": drawn["values_random"].sign() / self.dimension**0.5,
            "labels": outputs(drawn["teacher"], drawn["values_teacher"], drawn["tokens"]),
        }
        return drawn | values

    def _draw_one(self, problem: str, seed: int) -> dict[str, np.ndarray]:
        sizes = self.dimension, self.outputs
        sharpness = self.sharper if problem == "sharp" else self.sharpness
        (teacher, values_teacher), (student, values_random) = (
            draw_layer(*sizes, rng=stream(seed, name, self.dimension), sharpness=logits)
            for name, logits in (("teacher", sharpness), ("student", self.start_sharpness))
        )
        mean = stream(seed, "mean", self.dimension).standard_normal(self.dimension)
        mean *= (self.mean_norm if problem == "common_mean" else 0.0) / np.linalg.norm(mean)
        shape = (self.sequences, self.length, self.dimension)
        return {
            "tokens": stream(seed, "sequences", *shape).standard_normal(shape) + mean,
            "teacher": teacher, "values_teacher": values_teacher, "key_query": student, "values_random": values_random,
        }  # fmt: skip

    def tune(self, problem: str, way: str, device: torch.device) -> tuple[float, float]:
        """Return the pair of step sizes with the fewest gradients to the target, on average over the tuning seeds."""
        if WAYS[way].rule == "adam":
            grid = [(rate, rate) for rate in self.adam_steps]
        else:
            values = self.value_steps if WAYS[way].values == "trained" else (0.0,)
            grid = list(itertools.product(self.key_query_steps, values))
        data = self.draw(problem, self.tuning_seeds, device)
        many = {name: tensor.repeat_interleave(len(grid), 0) for name, tensor in data.items()}
        loss = self._train(way, many, grid * len(self.tuning_seeds), self.steps).loss
        mean = steps_to(loss, self.target).reshape(-1, len(grid)).mean(axis=0)
        final = loss[-1].log().cpu().numpy().reshape(-1, len(grid)).mean(axis=0)
        return grid[int(np.lexsort((final, mean))[0])]

    def _train(
        self, way: str, data: dict[str, Tensor], pairs: Sequence[tuple[float, float]], steps: int,
        keep: Sequence[int] = (),
    ) -> Trained:  # fmt: skip
        sizes = to_tensor(np.array(pairs), device=data["tokens"].device, dtype=torch.float64)
        unit = value_step_unit(data["tokens"]) if WAYS[way].rule == "descent" else 1.0
        value = data[f"values_{STARTS.get(way, 'zero')}"]
        return train_layers(
            data["key_query"], value, data["tokens"], data["labels"], way=WAYS[way], key_query_step=sizes[:, 0],
            value_step=sizes[:, 1] * unit, steps=steps, keep=keep,
        )  # fmt: skip


def steps_to(loss: Tensor, target: float) -> np.ndarray:
    """Return the steps until each loss is first at the target; the number of records where it never is."""
    there = (loss <= target).cpu().numpy()
    return np.where(there.any(axis=0), there.argmax(axis=0), len(there)).astype(float)
