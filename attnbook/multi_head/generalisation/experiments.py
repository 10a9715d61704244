"""The experiments of the chapter: the gap against its bounds, and networks without one sample.

Those on targets near the start are in :mod:`~attnbook.multi_head.generalisation.targets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import layer, starts
from attnbook.multi_head.data import Drawn, double_device
from attnbook.multi_head.generalisation.left_out import LeftOut
from attnbook.multi_head.generalisation.targets import CONDITIONS, InsideTheorem2, Realizability
from attnbook.multi_head.generalisation.training import OnMixture, best_direction, descend, even_counts, losses
from attnbook.multi_head.realizability import nearest_targets

__all__ = ["GeneralisationGap", "InsideTheorem2", "Realizability", "Stability"]

K_IS_N, K_FIXED = SCHEDULES = ("K = n", "K fixed")
NO_GAP = 1e-12  # what counts as the mean gap where there is none, so that no rule about slopes holds by it


@dataclass(frozen=True, kw_only=True)
class GeneralisationGap(OnMixture):
    """Test and training loss against the number of samples, with true labels and with coin tosses."""

    id = "multi_head.generalisation_gap"
    summary = "Theorem 2, Corollaries 2 and 4: the gap between test and training loss, and its bounds"
    budget_seconds = 40
    smoke = {"sizes": (5, 10, 20), "steps": 22, "test_samples": 100, "seeds": (0, 1), "dimension": 7, "n_tokens": 5}
    large = {
        "dimension": 50, "sizes": (10, 20, 40, 80, 160, 320, 640), "steps": 640,
        "test_samples": 5000, "seeds": tuple(range(20)),
    }  # fmt: skip

    heads: int = 4  # half of them with each sign
    sizes: tuple[int, ...] = (10, 20, 40, 80, 160)  # numbers of training samples, each twice the one before
    steps: int = 200  # the fixed number of steps, at least the largest n
    test_samples: int = 2000  # that the test loss is measured on
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        doubled = tuple(self.sizes[0] * 2**power for power in range(len(self.sizes)))
        if len(self.sizes) < 3 or self.sizes[0] < 2 or self.sizes != doubled:
            raise ValueError(f"sizes: expected at least three numbers from 2 on, each twice the last, got {self.sizes}")
        if self.steps < self.sizes[-1]:
            raise ValueError(f"steps: expected at least the largest size, {self.sizes[-1]}, got {self.steps}")
        if self.heads < 2 or self.heads % 2:
            raise ValueError(f"heads: expected an even number of at least 2, got {self.heads}")

    def coordinates(self) -> dict[str, Any]:
        """Name schedules and sizes, and say how many steps each takes."""
        steps = [[float(n) for n in self.sizes], [float(self.steps)] * len(self.sizes)]
        return {"schedule": list(SCHEDULES), "n": list(self.sizes), "steps": (("schedule", "n"), steps)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train on samples of every size, and look for the targets that the bounds need."""
        where, found = double_device(device), []
        with threads(1):
            start, test = self.start(seeds, where), self.draw(seeds, self.test_samples, "test", where)
            first = _tossed(self.draw(seeds, self.first_samples, "first phase", where), seeds, "first phase")
            other, coin_test = starts.first_phase(first.tokens, first.labels), _tossed(test, seeds, "test")
            for number, n in enumerate(self.sizes, 1):
                batch = self.draw(seeds, n, f"samples {n}", where)
                coins = _tossed(batch, seeds, f"samples {n}")
                random = {f"random_{name}": v for name, v in self._train(other, coins, coin_test).items()}
                found.append(self._train(start, batch, test) | self._targets(start, batch) | random)
                if progress:
                    progress(number, len(self.sizes))
        dims = {1: ("seed", "n"), 2: ("schedule", "seed", "n")}
        return {name: (dims[found[0][name].ndim], np.stack([one[name] for one in found], -1)) for name in found[0]}

    def _train(self, start: Parameters, batch: Drawn, test: Drawn) -> dict[str, np.ndarray]:
        """Return losses, and the error, after n steps and after the fixed number, ``(schedules, seeds)``."""
        counts = even_counts(start, self.heads)

        def record(networks: Parameters) -> dict[str, Tensor]:
            margins = test.labels * layer.outputs(networks, test.tokens, counts=counts)
            return {
                "train_loss": losses(networks, batch, counts),
                "test_loss": -logsigmoid(margins).mean(1),
                "test_error": (margins <= 0).double().mean(1),
            }

        return descend(start, batch, counts, self.step_size, (batch.labels.shape[1], self.steps), record)

    def _targets(self, start: Parameters, batch: Drawn) -> dict[str, np.ndarray]:
        """Return margin, largest output, and how far the nearest targets of loss 1/K are."""
        counts, steps = even_counts(start, self.heads), (batch.labels.shape[1], self.steps)
        margin, output_bound, _ = best_direction(start, batch, counts)
        targets = nearest_targets(start, batch.tokens, batch.labels, counts=counts)
        needed = np.stack([targets.distance_for(1 / k) for k in steps])
        return {"margin": margin, "output_bound": output_bound, "needed": needed}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes of mean losses and hold mean gaps against the bounds."""
        gap, bound, at_n = data.test_loss - data.train_loss, corollary_2(data, self.step_size), {"schedule": K_IS_N}
        coins = data.random_test_loss - data.random_train_loss
        fourth = corollary_4(data, self.step_size)
        ends = {"smallest_n": {"n": self.sizes[0], **at_n}, "largest_n": {"n": self.sizes[-1], **at_n}}
        return {
            "MH-T2.1": {
                "slope_mean_gap": mean_slope(gap.sel(at_n)),
                "slope_fixed_steps": mean_slope(gap.sel(schedule=K_FIXED)),
                **{f"gap_{name}": gap.sel(at) for name, at in ends.items()},
            },
            "MH-T2.1-random": {
                "slope_mean_gap": mean_slope(coins.sel(at_n)),
                "slope_fixed_steps": mean_slope(coins.sel(schedule=K_FIXED)),
                "gap_largest_n": coins.sel(ends["largest_n"]),
            },
            "MH-T2.3": {
                "slope_last_sizes": mean_slope(data.test_loss.sel(at_n).isel(n=slice(-3, None))),
                **{f"test_loss_{name}": data.test_loss.sel(at) for name, at in ends.items()},
            },
            "MH-T2.2": {
                "smallest_slack": np.log10(bound.min("seed") / positive(gap)).min(),
                **{f"bound_{name}": bound.sel(at) for name, at in ends.items()},
            },
            "MH-C4": {
                "smallest_slack": np.log10(fourth.mean("seed") / positive(gap)).min(),
                "smallest_bound": lowest(fourth),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stability(OnMixture):
    """What leaving one sample out does, for few heads and for very many, and once inside Theorem 2's hypotheses."""

    id = "multi_head.stability"
    summary = "Section 6.2: the networks without one sample, the recursion for their distances, and what bounds say"
    budget_seconds = 50
    smoke = {
        "sizes": (5, 10), "steps": 10, "inside_steps": 10, "inside_size": 5,
        "test_samples": 50, "seeds": (0, 1),
    }  # fmt: skip
    large = {"sizes": (10, 20, 40, 80, 160), "seeds": tuple(range(20))}

    n_tokens: int = 5  # half as many tokens, of half the dimension: n + 1 networks are trained
    dimension: int = 10  # of a token
    heads: tuple[int, int] = (4, 100_000_000)  # a small and a huge number, half of them with each sign
    steps: int = 60  # K
    sizes: tuple[int, ...] = (10, 20, 40, 80)  # numbers of training samples, increasing
    inside_heads: int = 10_000_000_000_000  # of the run inside what the proof of Theorem 2 needs
    inside_step_size: float = 0.02  # of that run
    inside_steps: int = 400  # of that run
    inside_size: int = 10  # training samples of that run
    test_samples: int = 2000  # that the test loss is measured on
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sizes) < 2 or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 2:
            raise ValueError(f"sizes: expected at least two increasing numbers of at least 2, got {self.sizes}")
        if len(self.heads) != 2 or not 2 <= self.heads[0] < self.heads[1] or any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected two increasing even numbers, got {self.heads}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads and sizes."""
        return {"heads": list(self.heads), "n": list(self.sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train full and reduced networks for every size and both numbers of heads, and inside the hypotheses."""
        where, found = double_device(device), []
        usual = self.heads, self.step_size, self.steps
        inside = (self.inside_heads,), self.inside_step_size, self.inside_steps
        with threads(1):
            problem, test = LeftOut(self, seeds, where), self.draw(seeds, self.test_samples, "test", where)
            for number, n in enumerate(self.sizes, 1):
                found.append(problem.measure(n, *usual, test))
                if progress:
                    progress(number, len(self.sizes))
            once = problem.measure(self.inside_size, *inside, test)
        dims = ("heads", "seed", "n")
        arrays: Arrays = {name: (dims, np.stack([one[name] for one in found], -1)) for name in found[0]}
        return arrays | {f"inside_{name}": (("seed",), values[0]) for name, values in once.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold distances and gaps against the recursions and bounds; without a prefix at the practical step size."""
        gap, lemma = data.test_loss - data.train_loss, lemma_3(data)
        left_out, few, wide = data.left_out_loss - data.train_loss, {"heads": self.heads[0]}, {"heads": self.heads[1]}
        excess = data.log_envelope - np.log10(data.distance)
        of_gap = [values.sum("n").mean("seed") / gap.sum("n").mean("seed") for values in (left_out, lemma)]
        conditions = xr.concat([data[f"inside_{name}"] for name in CONDITIONS], "condition")
        slopes = slope(data.distance)
        return {
            "MH-ST.1": {"slope_few": slopes.sel(few), "slope_wide": slopes.sel(wide)},
            "MH-ST.2": {
                "largest_ratio": highest(data.recursion), "inside_ratio": highest(data.inside_recursion),
                "inside_largest_condition": highest(conditions),
            },
            "MH-ST.2-unrolled": {
                "log_excess_few": excess.sel(few).min("n"), "log_excess_wide": excess.sel(wide).max("n"),
                "largest_forcing_used": highest(data.forcing_used),
            },
            "MH-ST.2-expansive": {
                "largest_ratio": highest(data.expansive), "inside_ratio": highest(data.inside_expansive),
            },
            "MH-ST.3": {
                "largest_ratio_printed": highest(data.printed.sel(wide)),
                "largest_ratio_corrected": highest(data.corrected.sel(wide)),
            },
            "MH-ST.4": {
                "smallest_slack": np.log10(lemma.mean("seed") / positive(gap)).min(),
                "largest_ratio_of_one_seed": highest(gap / lemma),
            },
            "MH-ST.5": {
                "largest_ratio": highest(data.distance / data.stability_bound),
                "inside_ratio": highest(data.inside_distance / data.inside_stability_bound),
                "inside_largest_condition": highest(conditions),
            },
            "MH-LOO": {
                "smallest_left_out_over_gap": of_gap[0].min(), "largest_left_out_over_gap": of_gap[0].max(),
                "smallest_lemma_3_over_gap": of_gap[1].min(),
                "left_out_over_gap_of_one_seed": highest(left_out.sum("n") / gap.sum("n")),
            },
        }  # fmt: skip


def slope(values: xr.DataArray) -> xr.DataArray:
    """Return the slope against the number of samples, on log axes."""
    logs = values.assign_coords(n=np.log(values.n))
    return xr.DataArray(np.log(logs)).polyfit("n", 1).polyfit_coefficients.sel(degree=1, drop=True)


def mean_slope(values: xr.DataArray) -> xr.DataArray:
    """Return the slope of the mean over seeds."""
    return slope(positive(values))


def positive(gap: xr.DataArray) -> xr.DataArray:
    """Return the mean over seeds, next to nothing where it is not positive."""
    return gap.mean("seed").clip(min=NO_GAP)


def corollary_2(data: xr.Dataset, step_size: float) -> xr.DataArray:
    """Return Corollary 2's bound on the gap for each training set, with its own margin."""

    def bound(n: np.ndarray, k: np.ndarray, margin: np.ndarray, largest: np.ndarray) -> np.ndarray:
        return theory.corollary_2(n_samples=n, steps=k, step_size=step_size, margin=margin, output_bound=largest)

    return xr.apply_ufunc(bound, data.n.astype(float), data.steps, data.margin, data.output_bound)


def corollary_4(data: xr.Dataset, step_size: float) -> xr.DataArray:
    """Return the bound on the gap with the measured distance of a target of loss 1/K, for each training set."""

    def bound(n: np.ndarray, k: np.ndarray, needed: np.ndarray) -> np.ndarray:
        return theory.theorem_2(n_samples=n, steps=k, step_size=step_size, target_loss=1 / k, target_distance=needed)

    return xr.apply_ufunc(bound, data.n.astype(float), data.steps, data.needed)


def lemma_3(data: xr.Dataset) -> xr.DataArray:
    r"""Return Lemma 3's bound on the gap from the measured distances, $2\beta_1$ times their mean."""
    return 2 * data.lipschitz * data.distance


def _tossed(drawn: Drawn, seeds: Sequence[int], purpose: str) -> Drawn:
    """Replace every label by a coin toss."""
    n_samples = drawn.labels.shape[1]
    coins = np.stack([stream(seed, "coins", purpose).choice([1.0, -1.0], n_samples) for seed in seeds])
    return drawn._replace(labels=to_tensor(coins, device=drawn.labels.device, dtype=torch.float64))
