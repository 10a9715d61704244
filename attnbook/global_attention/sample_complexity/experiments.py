"""The experiments of the chapter: Table 1 at any stop, error against samples, savings against sparsity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, get_args

import numpy as np
import torch
import xarray as xr

from attnbook import ledger
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress
from attnbook.core.settings import check_increasing
from attnbook.global_attention.masks import Member, Model, Setup, Training, train_members

__all__ = [
    "EarlyStop",
    "ErrorRate",
    "SampleComplexity",
    "Sparsity",
    "fit",
    "margins",
    "nearest_stop",
    "paper_losses",
    "samples_for",
]

MODELS: tuple[Model, ...] = ("baseline", "attention", "l1_attention")
NAMES = {"baseline": "baseline", "attention": "attention", "l1_attention": "l1"}  # in measured values
PAPER_SIZES = (10_000, 14_000, 16_000, 18_000, 20_000, 50_000)
PAPER_STOP = 400_000


@dataclass(frozen=True, kw_only=True)
class MaskedTeachers(Experiment):
    """Networks trained on samples of a teacher that looks at a few inputs; losses in units of the label variance."""

    models: ClassVar[tuple[Model, ...]] = MODELS

    n_inputs: int = 32  # p; 256 in Table 1
    outputs: int = 10  # labels per sample; 10 in Table 1
    teacher_width: int = 16  # hidden units of the teacher; the paper does not say
    width: int = 32  # hidden units d of the networks; the paper does not say
    sizes: tuple[int, ...]  # training samples n, increasing
    n_test: int  # held-out samples, with clean labels
    penalty: float  # L1 weight on the mask; the paper does not say
    step_size: float = 5e-3  # of Adam; the paper names neither optimiser nor step size
    batch_size: int = 64  # samples per step
    steps: int  # of training

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes", least=3)

    def setup(self, noise: float) -> Setup:
        """Return sizes and noise."""
        return Setup(self.n_inputs, self.outputs, self.teacher_width, self.width, noise, self.n_test)

    def train(
        self, seeds: tuple[int, ...], sparsities: tuple[int, ...], noise: float, device: torch.device,
        progress: Progress | None, record_at: tuple[int, ...] = (),
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Return records ``(record, seed, k, size, model, ...)``; at the end of a falling step size, if at no steps."""
        grid = (seeds, sparsities, self.sizes, self.models)
        members = [Member(model, seed, n, k, self.penalty) for seed, k, n, model in product(*grid)]
        steps = record_at or (self.steps,)
        training = Training(self.steps, self.batch_size, self.step_size, steps, decay=not record_at)
        records = train_members(members, self.setup(noise), training, device=device, progress=progress).records
        shape = (len(steps), *map(len, grid))
        return {name: array.reshape(*shape, *array.shape[2:]) for name, array in records.items()}

    def coordinates(self) -> dict[str, Any]:
        """Name sizes and models."""
        return {"size": list(self.sizes), "model": list(self.models)}


@dataclass(frozen=True, kw_only=True)
class SampleComplexity(MaskedTeachers):
    """Table 1 and Figure 7: test loss of three models for six sample sizes, at every step at which one may stop.

    At the book's size inputs are divided by 8 and samples by 16, as the first layer has 16 times fewer weights.
    """

    id = "global_attention.sample_complexity"
    summary = "Table 1 and Figure 7: test loss of three models for six sample sizes, and what it depends on"
    budget_seconds = 60
    smoke = {"sizes": (30, 40, 50, 60, 70, 80), "n_test": 64, "snapshot": 20, "steps": 30, "seeds": (0, 1), "chunk": 1}
    full = {
        "n_inputs": 256, "n_relevant": 64, "teacher_width": 64, "width": 128, "sizes": PAPER_SIZES, "n_test": 150_000,
        "penalty": 2e-4, "step_size": 2e-3, "batch_size": 128, "chunk": 1, "snapshot": 400_000, "steps": 400_000,
        "seeds": (0,),
    }  # fmt: skip
    paper_size = True

    n_relevant: int = 8  # inputs that matter, k; the paper does not say
    teacher_width: int = 32  # hidden units of the teacher
    width: int = 64  # hidden units d of the networks
    sizes: tuple[int, ...] = tuple(n // 16 for n in PAPER_SIZES)  # one for each row of Table 1
    n_test: int = 4096  # held-out samples, with clean labels
    penalty: float = 1e-3  # L1 weight on the mask
    snapshot: int = 2500  # step at which the rules of Table 1 are read; 400 000 in the paper
    steps: int = 6000  # of training

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sizes) != len(PAPER_SIZES):
            raise ValueError(f"sizes: expected {len(PAPER_SIZES)}, one for each row of Table 1, got {self.sizes}")
        if not 5 <= self.snapshot <= self.steps:
            raise ValueError(f"snapshot: expected between 5 and steps = {self.steps}, got {self.snapshot}")
        if not 1 <= self.n_relevant < self.n_inputs:
            raise ValueError(f"n_relevant: expected 1 to {self.n_inputs - 1} (n_inputs - 1), got {self.n_relevant}")

    @property
    def recorded(self) -> tuple[int, ...]:
        """Steps on a log grid that does not depend on ``steps``; fifths of the snapshot and the last are among them."""
        grid = {round(10 ** (k / 8)) for k in range(8 * len(str(self.steps)))}
        fifths = {self.snapshot * fifth // 5 for fifth in (1, 2, 3, 4, 5)}
        return tuple(sorted({0, self.steps} | {step for step in grid | fifths if step <= self.steps}))

    def coordinates(self) -> dict[str, Any]:
        """Name sizes as Table 1 does, and say how many samples they are here."""
        rows = {"size": list(PAPER_SIZES), "n_samples": ("size", list(self.sizes))}
        read = {"step": ("record", list(self.recorded)), "snapshot": self.snapshot}
        return {**super().coordinates(), **rows, **read}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train the networks of these seeds."""
        records = self.train(seeds, (self.n_relevant,), 0.0, device, progress, self.recorded)
        losses, weights = (records[name][:, :, 0] for name in ("test_loss", "effective_weights"))
        truth = [self.setup(0.0).teacher(seed, self.n_relevant).mask for seed in seeds]
        return {
            "test_loss": (("record", "seed", "size", "model"), losses),
            "weights": (("seed", "size", "model", "input"), weights[self.recorded.index(self.snapshot)]),
            "truth": (("seed", "input"), truth),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read the table at the snapshot, Figure 7 one, two and three fifths of the way, the race at every stop."""
        table = stopped(data, int(data.snapshot))
        cells = {f"{NAMES[m]}_{n}": table.sel(model=m, size=n) for n in PAPER_SIZES for m in MODELS}
        cells["thousand_steps"] = xr.DataArray(float(data.snapshot) / 1000)
        headline = {name: cells[name] for name in ("attention_14000", "baseline_20000", "thousand_steps")}
        l1 = {name: cells[name] for name in ("l1_10000", "attention_10000", "l1_20000", "thousand_steps")}
        off, on = (data.weights.where(data.truth == side).median(("size", "input")) for side in (0, 1))
        # A run that was broken off may lack the exact fifths.
        way = [np.flatnonzero(data.step.values <= int(data.snapshot) * i // 5)[-1] for i in (1, 2, 3)]
        baseline, attention, penalised = (data.test_loss[way].median("seed").sel(model=m) for m in MODELS)
        return {
            "GA-TAB1": cells,
            "GA-TAB1-headline": headline,
            "GA-TAB1-l1": l1,
            "GA-F7-attention": {"fraction_held": (attention < baseline).mean()},
            "GA-F7-l1": {"fraction_held": (penalised < attention).mean()},
            "GA-X-support": {f"off_over_on_{NAMES[m]}": (off / on).sel(model=m) for m in MODELS[1:]},
            "GA-TAB1-race": race(data),
        }


@dataclass(frozen=True, kw_only=True)
class EarlyStop(SampleComplexity):
    """The beginning of Table 1 at its full size, over five seeds: a fortieth of the steps. No claim rests on it.

    The full size of Table 1 itself is one seed, trained for as long as the paper trains.
    """

    id = "global_attention.early_stop"
    summary = "Table 1: the beginning of its full size over five seeds, a fortieth of the paper's steps"
    full = SampleComplexity.full | {"snapshot": 3000, "steps": 10_000, "seeds": (0, 1, 2, 3, 4)}
    paper_size = False

    snapshot: int = 600  # step at which the rules of Table 1 are read
    steps: int = 1500  # of training

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Measure nothing: the claims are those of the whole table."""
        return {}


def stopped(data: xr.Dataset, step: int) -> xr.DataArray:
    """Return the losses recorded at a step."""
    found = np.flatnonzero(data.step.values == step)
    if not len(found):
        raise ValueError(f"step: nothing recorded at {step}; recorded are {data.step.values.tolist()}")
    return data.test_loss[int(found[0])]


def paper_losses() -> xr.DataArray:
    """Return the 18 numbers of Table 1, from the claims ledger."""
    cells = ledger.claim("GA-TAB1").paper_value
    table = [[cells[f"{NAMES[model]}_{size}"] for model in MODELS] for size in PAPER_SIZES]
    return xr.DataArray(table, {"size": list(PAPER_SIZES), "model": list(MODELS)}, ("size", "model"))


def margins(losses: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return, for each rule on Table 1, a ratio of losses that is at most 1 where the rule holds."""
    b, a, r = ({n: losses.sel(model=model, size=n, drop=True) for n in PAPER_SIZES} for model in MODELS)
    halves = [2 * a[n] / b[n] for n in PAPER_SIZES[:-1]]
    return {
        "attention at most half the baseline": xr.concat(halves, "row").max("row"),
        "... and below it at 50 000": a[50_000] / b[50_000],
        "L1 at most half of attention at 10 000": 2 * r[10_000] / a[10_000],
        "baseline falls threefold to 20 000": 3 * b[20_000] / b[10_000],
        "L1 not below attention at 50 000": a[50_000] / r[50_000],
        "headline: attention 14 000, baseline 20 000": a[14_000] / b[20_000],
        "L1 falls at most fourfold to 20 000": r[10_000] / r[20_000] / 4,
    }


def fit(losses: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the factor that brings losses closest to the paper's, and by how much a typical cell is off then."""
    error = xr.apply_ufunc(np.log, paper_losses() / losses)
    factor = error.mean(("size", "model"))
    off = ((error - factor) ** 2).mean(("size", "model")) ** 0.5
    return np.exp(1) ** factor, np.exp(1) ** off


def nearest_stop(data: xr.Dataset) -> int:
    """Return the step at which our table comes closest to the paper's."""
    return int(data.step.values[fit(data.test_loss.median("seed"))[1].values.argmin()])


def race(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return at which share of stops attention is ahead, and what becomes of the fall of the baseline's column."""
    later = data.test_loss[data.step.values > 0]
    baseline, attention, _ = (later.sel(model=model) for model in MODELS)
    fall = baseline.sel(size=10_000) / baseline.sel(size=20_000)
    return {
        "share_ahead": (attention < baseline).mean(("record", "size")),
        "largest_fall": fall.max("record"),
        "last_fall": fall[-1],
    }


@dataclass(frozen=True, kw_only=True)
class ErrorRate(MaskedTeachers):
    """Theorem 1, Corollary 1, Proposition 1: how the error falls with samples; this book's, the paper has none.

    Labels are noisy and the step size falls to zero, so that the error is due to samples more than to the stop. It is
    measured against clean labels: the theorem's squared error.
    """

    id = "global_attention.error_rate"
    summary = "Theorem 1, Corollary 1, Proposition 1: error against samples with noisy labels"
    budget_seconds = 30
    smoke = {"sizes": (30, 40, 50, 60, 70, 80), "n_test": 64, "steps": 20, "seeds": (0, 1), "chunk": 1}
    full = {"steps": 10_000, "n_test": 20_000, "seeds": tuple(range(10)), "chunk": 2}
    models = get_args(Model)

    n_relevant: int = 4  # inputs that matter, k
    noise: float = 0.5  # standard deviation of the label noise; the clean labels have 1
    sizes: tuple[int, ...] = (250, 500, 1000, 2000, 4000, 8000)  # training samples
    n_test: int = 4096  # held-out samples, with clean labels
    penalty: float = 1e-3  # L1 weight on the mask
    steps: int = 3000  # the step size falls to zero along a cosine

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all five models on all sample sizes."""
        records = self.train(seeds, (self.n_relevant,), self.noise, device, progress)
        return {"test_loss": (("seed", "size", "model"), records["test_loss"][0, :, 0])}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare slopes over the three largest sizes and, at every size, the models with the baseline."""
        few, many = slice(0, 3), slice(-3, None)
        of = {str(model): data.test_loss.sel(model=model) for model in data.model.values}
        baseline, oracle = of["baseline"], of["oracle"]
        slopes = {f"slope_{NAMES[m]}": slope(of[m][:, many]) for m in MODELS}
        best, rewritten = data.test_loss.drop_sel(model="oracle").min("model"), of["sum_to_one"] / of["attention"]
        return {
            "GA-T1-rate": slopes,
            "GA-T1-tight": slopes | {"slope_known_mask": slope(oracle[:, many])},
            "GA-T1-order": {f"{NAMES[m]}_over_baseline": (of[m] / baseline).max("size") for m in MODELS[1:]},
            "GA-C1-order": {"sum_to_one_over_baseline": (of["sum_to_one"] / baseline).max("size")},
            "GA-C1-free": {"sum_to_one_over_attention": rewritten[:, many].mean("size")},
            "GA-P1-order": {
                "share_known_best": (oracle <= best).mean(),
                "known_over_best_trained": (oracle / best).max("size"),
            },
            "GA-P1-gain": {"known_over_attention": (oracle / of["attention"])[:, few].max("size")},
        }


def slope(losses: xr.DataArray) -> xr.DataArray:
    """Return the slope of each seed's log error against the log of the sample size."""
    logs = np.log(losses.transpose("size", "seed"))
    return xr.DataArray(np.polyfit(np.log(losses["size"]), logs, 1)[0], dims="seed")


@dataclass(frozen=True, kw_only=True)
class Sparsity(MaskedTeachers):
    """When does a mask help? Teachers that look at few, many or all inputs; this book's, the paper has none.

    The last teacher is that of the paper's remark in Appendix B: attention may hurt when every input matters.
    """

    id = "global_attention.sparsity"
    summary = "When a mask helps: error against samples for several numbers of relevant inputs"
    budget_seconds = 30
    smoke = {"sparsities": (4, 32), "sizes": (30, 40, 50), "n_test": 64, "steps": 20, "seeds": (0, 1), "chunk": 1}
    full = {"steps": 6000, "n_test": 20_000, "seeds": tuple(range(10)), "chunk": 1}

    sparsities: tuple[int, ...] = (2, 4, 8, 16, 32)  # relevant inputs of the teachers, increasing; the last is dense
    noise: float = 0.5  # standard deviation of the label noise; the clean labels have 1
    sizes: tuple[int, ...] = (250, 500, 1000, 2000, 4000)  # training samples
    n_test: int = 2048  # held-out samples, with clean labels
    penalty: float = 1e-2  # the best of eight for k = 4 and n = 1000, on other seeds
    target: float = 0.02  # test error that defines "samples needed"
    steps: int = 2000  # the step size falls to zero along a cosine
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sparsities[-1] != self.n_inputs:
            raise ValueError(f"sparsities: expected n_inputs = {self.n_inputs} last, got {self.sparsities}")

    def coordinates(self) -> dict[str, Any]:
        """Name the teachers, too."""
        return {**super().coordinates(), "k": list(self.sparsities), "target": self.target}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train the grid of teachers, sizes and models."""
        records = self.train(seeds, self.sparsities, self.noise, device, progress)
        return {"test_loss": (("seed", "k", "size", "model"), records["test_loss"][0])}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Judge the dense teacher with the most and the fewest samples, and the saving at both ends of sparsity."""
        dense = data.test_loss.isel(k=-1)
        ratio = dense / dense.sel(model="baseline")
        l1, attention = ratio.sel(model="l1_attention"), ratio.sel(model="attention")
        most = float(data["size"][-1])  # where no size reached the target: a bound
        needed = samples_for(data).clip(max=most)
        saving = needed.sel(model="baseline") / needed.sel(model="l1_attention")
        return {
            "GA-G1-dense-l1": {
                "l1_over_baseline": l1.isel(size=-1),
                "attention_over_baseline": attention.isel(size=-1),
                "l1_over_baseline_few_samples": l1.isel(size=0),
            },
            "GA-X-phase": {"saving_sparsest": saving.isel(k=0), "saving_dense_at_most": saving.isel(k=-1)},
        }


def samples_for(data: xr.Dataset) -> xr.DataArray:
    """Return the sample size at which median errors reach the target, interpolated on log axes; infinite where none."""
    falling = np.log(data.test_loss.median("seed")).reduce(np.minimum.accumulate, dim="size", keepdims=True)
    goal, log_sizes = np.log(float(data.target)), np.log(data["size"].values)

    def needed(curve: np.ndarray) -> float:
        return float(np.exp(np.interp(-goal, -curve, log_sizes))) if curve[-1] <= goal else np.inf

    return xr.apply_ufunc(needed, falling, input_core_dims=[["size"]], vectorize=True)
