"""The experiments of the chapter: the gap against its bounds, and networks without one sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head.checks import at_least, increasing, positive
from attnbook.multi_head.data import Drawn
from attnbook.multi_head.experiment_parts import slope
from attnbook.multi_head.generalisation import left_out
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.on_mixture import AfterFirstPhase, Stack, stacked
from attnbook.multi_head.realizability import PENALTIES, nearest_targets

__all__ = ["GeneralisationGap", "InsideTheorem2", "Stability"]

K_IS_N, K_FIXED = SCHEDULES = ("K = n", "K fixed")
NO_GAP = 1e-12  # what counts as the mean gap where there is none, so that no rule about slopes holds by it
# What the proof of Theorem 2 needs to be at most 1, see `proof_conditions`.
CONDITIONS = ("step", "smoothness", "gradient", "target", "pair", "kept", "first")


@dataclass(frozen=True, kw_only=True)
class OnNoisyData(AfterFirstPhase):
    """Data with much noise."""

    n_tokens: int = 10  # T
    dimension: int = 20  # of a token
    n_patterns: int = 4  # M
    relevant_fraction: float = 0.2  # zeta
    noise: float = 0.3  # along patterns
    free_noise: float = 1.0  # orthogonal to them
    first_phase_samples: int = 400  # n_1
    step_size: float = 0.5  # practical: it was not made for the theorem, and not tuned
    sizes: tuple[int, ...] = (10, 20, 40, 80, 160)  # numbers of training samples, increasing
    test_samples: int = 2000  # that the test loss is measured on

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(2, count=2, sizes=self.sizes)
        positive(step_size=self.step_size)
        at_least(1, test_samples=self.test_samples)


@dataclass(frozen=True, kw_only=True)
class GeneralisationGap(OnNoisyData):
    """Test and training loss against the number of samples."""

    id = "multi_head.generalisation_gap"
    summary = "Theorem 2, Corollaries 2 and 4: the gap between test and training loss, and its bounds"
    needs = "float64"
    budget_seconds = 40
    smoke = {"sizes": (5, 10, 20), "steps": 22, "test_samples": 100, "seeds": (0, 1), "dimension": 7, "n_tokens": 5}
    axes = {"n": "sizes"}
    labels = {"schedule": SCHEDULES}

    heads: int = 4  # half of them with each sign
    steps: int = 200  # the fixed number of steps, at least the largest n
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < self.sizes[-1]:
            raise ValueError(f"steps: expected at least the largest size, {self.sizes[-1]}, got {self.steps}")

    def coordinates(self) -> dict[str, Any]:
        """Say how many steps each schedule takes, too."""
        steps = [[float(n) for n in self.sizes], [float(self.steps)] * len(self.sizes)]
        return super().coordinates() | {"steps": (("schedule", "n"), steps)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train on samples of every size, and look for the targets that the bounds need."""
        found, heads = [], [self.heads]
        first, test = self.first(seeds, device), self.draw(seeds, self.test_samples, "test", device)
        with threads(1):
            for number, n in enumerate(self.sizes, 1):
                stack = stacked(self.draw(seeds, n, f"samples {n}", device), first, heads)
                found.append(self._trained(stack, test) | self._targets(stack))
                if progress:
                    progress(number, len(self.sizes))
        dims = {1: ("seed", "n"), 2: ("schedule", "seed", "n")}
        return {name: (dims[found[0][name].ndim], np.stack([one[name] for one in found], -1)) for name in found[0]}

    def _trained(self, stack: Stack, test: Drawn) -> dict[str, np.ndarray]:
        """Return losses after n steps and after the fixed number, ``(schedules, seeds)``."""
        fresh = stack.on(test)

        def record(networks: Parameters) -> dict[str, Tensor]:
            return {"train_loss": stack.losses(networks), "test_loss": fresh.losses(networks)}

        return stack.train(self.step_size, (stack.labels.shape[1], self.steps), record)[0]

    def _targets(self, stack: Stack) -> dict[str, np.ndarray]:
        """Return margin, largest output, and how far the nearest targets of loss 1/K are."""
        targets = nearest_targets(stack.start, stack.tokens, stack.labels, counts=stack.counts)
        needed = np.stack([targets.distance_for(1 / k) for k in (stack.labels.shape[1], self.steps)])
        return {"margin": stack.tangent().margin, "output_bound": stack.output_bound(), "needed": needed}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes of mean losses and hold mean gaps against the bounds."""
        gap, bound, at_n = data.test_loss - data.train_loss, corollary_2(data, self.step_size), {"schedule": K_IS_N}
        fourth, schedules = corollary_4(data, self.step_size), {"mean_gap": K_IS_N, "fixed_steps": K_FIXED}
        ends = {"smallest_n": {"n": self.sizes[0], **at_n}, "largest_n": {"n": self.sizes[-1], **at_n}}
        slopes = {f"slope_{name}": slope(positive_mean(gap.sel(schedule=k)), "n") for name, k in schedules.items()}
        return {
            "MH-T2.1": slopes | {f"gap_{name}": gap.sel(at) for name, at in ends.items()},
            "MH-T2.3": {
                "slope_last_sizes": slope(positive_mean(data.test_loss.sel(at_n).isel(n=slice(-3, None))), "n"),
                **{f"test_loss_{name}": data.test_loss.sel(at) for name, at in ends.items()},
            },
            "MH-T2.2": {
                "smallest_slack": np.log10(bound.min("seed") / positive_mean(gap)).min(),
                **{f"bound_{name}": bound.sel(at) for name, at in ends.items()},
            },
            "MH-C4": {
                "smallest_slack": np.log10(fourth.mean("seed") / positive_mean(gap)).min(),
                "smallest_bound": lowest(fourth),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stability(OnNoisyData):
    """What leaving one sample out does, for few heads and for very many, and once inside Theorem 2's hypotheses."""

    id = "multi_head.stability"
    summary = "Section 6.2: the networks without one sample, the recursion for their distances, and what bounds say"
    needs = "float64"
    budget_seconds = 50
    smoke = {
        "sizes": (5, 10), "steps": 10, "inside_steps": 10, "inside_size": 5,
        "test_samples": 50, "seeds": (0, 1),
    }  # fmt: skip
    axes = {"heads": "heads", "n": "sizes"}

    n_tokens: int = 5  # half as many tokens, of half the dimension: n + 1 networks are trained
    dimension: int = 10  # of a token
    heads: tuple[int, int] = (4, 100_000_000)  # a small and a huge number, half of them with each sign
    steps: int = 60  # K
    sizes: tuple[int, ...] = (10, 20, 40, 80)  # numbers of training samples, increasing
    inside_heads: int = 10_000_000_000_000  # of the run inside what the proof of Theorem 2 needs
    inside_step_size: float = 0.02  # of that run
    inside_steps: int = 400  # of that run
    inside_size: int = 10  # training samples of that run
    chunk: int = 1

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train full and reduced networks for every size and both numbers of heads, and inside the hypotheses."""
        found, test = [], self.draw(seeds, self.test_samples, "test", device)
        runs: list[tuple[int, tuple[int, ...], float, int]]
        runs = [(n, self.heads, self.step_size, self.steps) for n in self.sizes]
        runs += [(self.inside_size, (self.inside_heads,), self.inside_step_size, self.inside_steps)]
        with threads(1):
            for number, run in enumerate(runs, 1):
                found.append(left_out.measured(left_out.followed(self, seeds, *run, device), run[2], test))
                if progress:
                    progress(number, len(runs))
        *usual, inside = found
        return {name: (("seed", "heads", "n"), np.stack([one[name] for one in usual], -1)) for name in inside} | {
            f"inside_{name}": (("seed",), values[:, 0]) for name, values in inside.items()
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold distances and gaps against the recursions and bounds; without a prefix at the practical step size."""
        gap, lemma, slopes = data.test_loss - data.train_loss, lemma_3(data), slope(data.distance, "n")
        left_out_gap, (few, wide) = data.left_out_loss - data.train_loss, ({"heads": h} for h in self.heads)
        excess = data.log_envelope - np.log10(data.distance)
        of_gap = [values.sum("n").mean("seed") / gap.sum("n").mean("seed") for values in (left_out_gap, lemma)]
        conditions = xr.concat([data[f"inside_{name}"] for name in CONDITIONS], "condition")
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
                "smallest_slack": np.log10(lemma.mean("seed") / positive_mean(gap)).min(),
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
                "left_out_over_gap_of_one_seed": highest(left_out_gap.sum("n") / gap.sum("n")),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InsideTheorem2(AfterFirstPhase):
    """Gap and bound where all that the proof of Theorem 2 needs holds."""

    id = "multi_head.inside_theorem_2"
    summary = "Theorem 2 inside its hypotheses, with enough samples for its bound to say something"
    needs = "float64"
    budget_seconds = 40
    smoke = {"n_samples": 60, "steps": 5, "test_samples": 50, "seeds": (0, 1)}
    labels = {"name": CONDITIONS}

    n_samples: int = 8000  # n
    heads: int = 1_000_000_000_000  # H, half of them with each sign
    step_size: float = 0.06  # so that all conditions hold
    steps: int = 400  # K
    test_samples: int = 8000  # that the test loss is measured on
    chunk: int = 1

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train, and evaluate the bound for the best target found, and all conditions."""
        drawn, test = (self.draw(seeds, n, name, device)
                       for n, name in ((self.n_samples, "samples"), (self.test_samples, "test")))  # fmt: skip
        stack = stacked(drawn, self.first(seeds, device), [self.heads])

        def record(networks: Parameters) -> dict[str, Tensor]:
            found = {"train": stack.losses(networks), "test": stack.on(test).losses(networks)}
            return found | {"head_norm": largest_head_norm(networks)}

        with threads(1):
            path = stack.train(self.step_size, (0, self.steps), record, progress)[0]
            targets = nearest_targets(
                stack.start, stack.tokens, stack.labels, counts=stack.counts, penalties=PENALTIES[:20]
            )
        best = left_out.best_bound(targets, n_samples=self.n_samples, steps=self.steps, step_size=self.step_size)
        target = {name: best[name] for name in ("target_loss", "target_distance")}
        far = best["target_distance"]
        # A head of a group of H / 2 equal ones moves at most as far as all of them together over root H / 2.
        norms = path["head_norm"].max(0) + 4 * far / (self.heads / 2) ** 0.5
        conditions = theory.proof_conditions(
            step_size=self.step_size, steps=self.steps, n_heads=float(self.heads), start_loss=path["train"][0],
            **self.constants(self.heads, norms), **target, pair_distance=8 * far,
        )  # fmt: skip
        found = {**best, "train_loss": path["train"][-1], "test_loss": path["test"][-1]}
        arrays: Arrays = {name: (("seed",), values) for name, values in found.items()}
        return arrays | {"condition": (("seed", "name"), np.stack([conditions[name] for name in CONDITIONS], 1))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the mean gap against the mean bound."""
        gap = data.test_loss - data.train_loss
        return {
            "MH-T2.2-target": {
                "largest_condition": highest(data.condition),
                "mean_gap_over_bound": gap.mean() / data.theorem_2.mean(),
                "largest_bound": highest(data.theorem_2),
                "promised_test_loss": highest(data.train_loss + data.theorem_2),
            }
        }


def positive_mean(gap: xr.DataArray) -> xr.DataArray:
    """Return the mean over seeds, next to nothing where it is not positive."""
    return gap.mean("seed").clip(min=NO_GAP)


def corollary_2(data: xr.Dataset, step_size: float) -> xr.DataArray:
    """Return Corollary 2's bound on the gap for each training set, with its own margin."""
    distance = theory.target_distance(steps=data.steps, margin=data.margin, output_bound=data.output_bound)
    return xr.DataArray(17 * distance**2 / (step_size * data.n))


def corollary_4(data: xr.Dataset, step_size: float) -> xr.DataArray:
    """Return eq. (5) for the nearest target of loss 1/K: the bound on the gap for each training set."""
    return 4 / data.n * (2 + 9 * data.needed**2 / (4 * step_size))


def lemma_3(data: xr.Dataset) -> xr.DataArray:
    r"""Return Lemma 3's bound on the gap from the measured distances, $2\beta_1$ times their mean."""
    return 2 * data.lipschitz * data.distance
