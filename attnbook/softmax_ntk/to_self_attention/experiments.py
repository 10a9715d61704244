"""The experiments of the chapter: what a layer has of the two-layer network, and ways to train a planted one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.alternating import Trained, Way, train_layers, value_step_unit
from attnbook.softmax_ntk.self_attention import draw_layer, loss_and_gradients, outputs, row_as_network
from attnbook.softmax_ntk.two_layer import Networks, predict

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
    """Appendix H.1: a row of self-attention is the two-layer network; the kernel of its softmax weights."""

    id = "softmax_ntk.layer_as_network"
    summary = "Self-attention by the tensor trick and row by row, its gradient, and the rank of its kernel"
    budget_seconds = 10
    smoke = {"sequences": 5, "dimension": 3, "lengths": (7, 11), "seeds": (0, 1)}

    sequences: int = 11
    length: int = 7  # tokens of a sequence in the identities
    dimension: int = 5  # entries of a token
    outputs: int = 3  # of a token
    lengths: tuple[int, ...] = (7, 14, 28)  # of sequences at which the kernel of the softmax weights is taken

    def __post_init__(self) -> None:
        super().__post_init__()
        entries = self.sequences * min(self.lengths) * self.outputs
        if self.dimension**2 >= entries:
            raise ValueError(f"sequences: the kernel needs more than {self.dimension**2} label entries, got {entries}")

    def coordinates(self) -> dict[str, Any]:
        """Name lengths."""
        return {"length": list(self.lengths)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compare layers with their other forms, and take eigenvalues of their kernels."""
        with runtime.threads(1):
            found = [self._one(seed) for seed in seeds]
        if progress:
            progress(1, 1)
        return {
            name: (("seed", "length", "index")[: 1 + np.ndim(found[0][name])], np.stack([f[name] for f in found]))
            for name in found[0]
        }

    def _one(self, seed: int) -> dict[str, Any]:
        rng = stream(seed, "to_self_attention", self.dimension)

        def normal(*shape: int) -> Tensor:
            return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

        tokens = normal(1, self.sequences, self.length, self.dimension)
        key_query = normal(self.dimension, self.dimension) @ normal(self.dimension, self.dimension).T / self.dimension
        value, labels = normal(self.dimension, self.outputs), normal(1, self.sequences * self.length, self.outputs)
        x, whole = tokens[0, 0], plain_layer(key_query, value, tokens[0])[: self.length]
        logits = (torch.kron(x, x) @ key_query.flatten()).view(self.length, -1)
        network = Networks.stack("softmax", [row_as_network(x.numpy(), key_query.numpy(), value.numpy())])
        ours = loss_and_gradients(key_query[None], value[None], tokens, labels)
        slope = torch.func.grad(lambda m: (plain_layer(m, value, tokens[0]) - labels[0]).square().sum())(key_query)
        return {
            "tensor_error": float((torch.softmax(logits, 1) @ x @ value - whole).abs().max()),
            "row_error": float((predict(network, x[None])[0].T / self.length - whole).abs().max()),
            "gradient_error": float((2 * labels.shape[1] * ours.key_query[0] - slope).norm() / slope.norm()),
            "spectrum": np.stack([self._spectrum(key_query, value, seed, length) for length in self.lengths]),
        }

    def _spectrum(self, key_query: Tensor, value: Tensor, seed: int, length: int) -> np.ndarray:
        """Return the largest eigenvalues of the kernel of the softmax weights, a few more than there are weights."""
        shape = (1, self.sequences, length, self.dimension)
        tokens = to_tensor(stream(seed, "kernel", *shape).standard_normal(shape), dtype=torch.float64)[0]
        jacobian = torch.func.jacrev(lambda m: plain_layer(m, value, tokens).flatten())(key_query).flatten(1)
        gram = (jacobian @ jacobian.T).numpy()
        return np.sort(np.abs(np.linalg.eigvalsh(gram)))[::-1][: 2 * self.dimension**2]

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the largest errors, and the rank of the kernel at each length."""
        rank = (data.spectrum > SINGULAR * data.spectrum.max("index")).sum("index")
        errors = {name: highest(data[name]) for name in ("tensor_error", "row_error", "gradient_error")}
        entries = self.sequences * min(self.lengths) * self.outputs
        return {
            "SN-ATT-row": errors,
            "SN-H-kernel": {
                "lowest_rank": lowest(rank), "highest_rank": highest(rank),
                "softmax_weights": xr.DataArray(self.dimension**2), "label_entries": xr.DataArray(entries),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlantedAttention(Experiment):
    """A student layer looks for a teacher layer: values solved, trained or frozen, at equal numbers of gradients.

    Step sizes of each way are chosen on seeds of their own.
    """

    id = "softmax_ntk.planted_attention"
    summary = "Alternating, joint and softmax-only training of a planted self-attention layer at equal budget"
    budget_seconds = 40
    smoke = {
        "sequences": 7, "length": 5, "dimension": 3, "outputs": 2, "steps": 12, "target": 1e-3, "long_steps": 20,
        "key_query_steps": (0.2, 0.5), "value_steps": (0.5, 1.0), "adam_steps": (0.1,), "shown_steps": (0, 12),
        "records": 5, "tuning_seeds": (100,), "seeds": (0, 1),
    }  # fmt: skip
    large = {
        "sequences": 256, "length": 16, "dimension": 11, "outputs": 7, "steps": 1000, "long_steps": 5000,
        "shown_steps": (0, 10, 100, 1000),
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
        where = torch.device("cpu") if device.type == "mps" else device
        found: list[dict[str, np.ndarray]] = []
        later: list[np.ndarray] = []
        with runtime.threads(1):
            for problem, way in itertools.product(PROBLEMS, WAYS):
                best = self.tune(problem, way, where)
                data = self.draw(problem, seeds, where)
                trained = self._train(way, data, [best] * len(seeds), self.steps, keep=self.shown_steps)
                found.append(self._read(trained, data["teacher"]) | {"chosen": np.tile(best, (len(seeds), 1))})
                if problem == "sharp" and way in LATER:
                    longer = self._train(way, data, [best] * len(seeds), self.long_steps)
                    later.append(longer.loss[-1].cpu().numpy())
                if progress:
                    progress(len(found), len(PROBLEMS) * len(WAYS))
        shape, last = (len(PROBLEMS), len(WAYS)), {"loss": "step", "condition": "shown", "chosen": "matrix"}
        arrays: Arrays = {"later_loss": (("later", "seed"), np.stack(later))}
        for name in found[0]:
            each = np.stack([f[name] for f in found])
            dims = ("problem", "way", "seed", *((last[name],) if name in last else ()))
            arrays[name] = (dims, each.reshape(*shape, *each.shape[1:]))
        return arrays

    def _read(self, trained: Trained, teacher: Tensor) -> dict[str, np.ndarray]:
        distance = (trained.key_query - teacher).norm(dim=(1, 2)) / teacher.norm(dim=(1, 2))
        condition = torch.stack([trained.condition[step] for step in self.shown_steps], dim=1)
        tensors = {"loss": trained.loss[self.recorded].T, "condition": condition, "distance": distance}
        return {"evaluations": steps_to(trained.loss, self.target)} | {n: t.cpu().numpy() for n, t in tensors.items()}

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
        teacher = draw_layer(*sizes, rng=stream(seed, "teacher", self.dimension), sharpness=sharpness)
        student = draw_layer(*sizes, rng=stream(seed, "student", self.dimension), sharpness=self.start_sharpness)
        mean = stream(seed, "mean", self.dimension).standard_normal(self.dimension)
        mean *= (self.mean_norm if problem == "common_mean" else 0.0) / np.linalg.norm(mean)
        shape = (self.sequences, self.length, self.dimension)
        return {
            "tokens": stream(seed, "sequences", *shape).standard_normal(shape) + mean,
            "teacher": teacher.key_query, "values_teacher": teacher.value,
            "key_query": student.key_query, "values_random": student.value,
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


def plain_layer(key_query: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
    """Return the outputs of one layer on sequences, as one would write it down."""
    return (torch.softmax(tokens @ key_query @ tokens.mT, dim=2) @ tokens @ value).flatten(0, 1)


def steps_to(loss: Tensor, target: float) -> np.ndarray:
    """Return the steps until each loss is first at the target; the number of records where it never is."""
    there = (loss <= target).cpu().numpy()
    return np.where(there.any(axis=0), there.argmax(axis=0), len(there)).astype(float)
