"""Two experiments on nearly clean data, those of the chapter on training: Theorem 2 inside its hypotheses, and targets.

The targets are those of Assumption 2 (realizability), with the distance that Corollary 2 gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import starts
from attnbook.multi_head.data import Drawn, double_device
from attnbook.multi_head.generalisation.training import (
    OnMixture,
    best_bound,
    best_direction,
    descend,
    even_counts,
    losses,
)
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.realizability import PENALTIES, nearest_targets

# What the proof of Theorem 2 needs to be at most 1, see `proof_conditions`.
CONDITIONS = ("step", "smoothness", "gradient", "target", "pair", "kept", "first")
MANY = 64  # heads from which on realizability is judged: Section 4.3 asks for enough of them


@dataclass(frozen=True, kw_only=True)
class OnCleanData(OnMixture):
    """Nearly clean data."""

    n_tokens: int = 4  # T
    dimension: int = 6  # d
    n_patterns: int = 2  # M
    relevant_fraction: float = 0.5  # of the tokens
    noise: float = 0.02  # along patterns
    free_noise: float = 0.2  # orthogonal to them
    first_samples: int = 1000  # of the first phase


@dataclass(frozen=True, kw_only=True)
class InsideTheorem2(OnCleanData):
    """Gap and bound where all that the proof of Theorem 2 needs holds."""

    id = "multi_head.inside_theorem_2"
    summary = "Theorem 2 inside its hypotheses, with enough samples for its bound to say something"
    budget_seconds = 40
    smoke: ClassVar = {"n_samples": 60, "steps": 5, "test_samples": 50, "seeds": (0, 1)}

    n_samples: int = 8000  # n
    heads: int = 1_000_000_000_000  # H, half of them with each sign
    step_size: float = 0.06  # so that all conditions hold
    steps: int = 400  # K
    test_samples: int = 8000  # that the test loss is measured on
    chunk: int = 1

    def coordinates(self) -> dict[str, Any]:
        """Name the conditions."""
        return {"name": list(CONDITIONS)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train, and evaluate the bound for the best target found, and all conditions."""
        where = double_device(device)
        with threads(1):
            start = self.start(seeds, where)
            batch = self.draw(seeds, self.n_samples, "samples", where)
            test = self.draw(seeds, self.test_samples, "test", where)
            counts = even_counts(start, self.heads)

            def record(networks: Parameters) -> dict[str, Tensor]:
                found = {"train": losses(networks, batch, counts), "test": losses(networks, test, counts)}
                return found | {"head_norm": largest_head_norm(networks)}

            path = descend(start, batch, counts, self.step_size, (0, self.steps), record, progress)
            targets = nearest_targets(start, batch.tokens, batch.labels, counts=counts, penalties=PENALTIES[:20])
        best = best_bound(targets, n_samples=self.n_samples, steps=self.steps, step_size=self.step_size)
        far = best["target_distance"]
        # A head of a group of H / 2 equal ones moves at most as far as all of them together over root H / 2.
        norms = path["head_norm"].max(0) + 4 * far / (self.heads / 2) ** 0.5
        conditions = theory.proof_conditions(
            step_size=self.step_size,
            steps=self.steps,
            n_heads=float(self.heads),
            **self.constants(np.array(self.heads), norms),
            start_loss=path["train"][0],
            target_loss=best["target_loss"],
            target_distance=far,
            pair_distance=8 * far,
        )
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


@dataclass(frozen=True, kw_only=True)
class Realizability(OnCleanData):
    """How far from a good start the nearest target of loss 1/K is, from 4 to a million million heads."""

    id = "multi_head.realizability"
    summary = "Assumption 2, Proposition 7, Corollary 3: how far the nearest target of a small loss is"
    budget_seconds = 20
    smoke: ClassVar = {"heads": (4, 1e6), "horizons": (10, 100), "trained": (10, 100), "seeds": (0, 1)}

    n_samples: int = 40  # training samples
    heads: tuple[float, ...] = (4, 64, 1e4, 1e6, 1e8, 1e10, 1e12)  # each has a random sign
    horizons: tuple[int, ...] = (10, 30, 100, 300, 1000, 10_000, 1_000_000)  # K: a loss of 1/K is wanted
    trained: tuple[int, ...] = (100, 1000)  # those that networks are trained for, the least and the most

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.trained) != 2 or not set(self.trained) <= set(self.horizons):
            raise ValueError(f"trained: expected two of the horizons {self.horizons}, got {self.trained}")
        if self.heads[-1] < MANY:
            raise ValueError(f"heads: expected some number of at least {MANY}, got {self.heads}")

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of heads, horizons and trained steps."""
        return {"heads": list(self.heads), "k": list(self.horizons), "trained_k": list(self.trained)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Look for targets along the best tangent direction and on the path of least loss; train beside them."""
        where, widths = double_device(device), len(self.heads)
        with threads(1):
            once = self.draw(seeds, self.n_samples, "samples", where)
            batch = Drawn(*(tensor.repeat_interleave(widths, dim=0) for tensor in once))
            start = {name: t.repeat_interleave(widths, dim=0) for name, t in self.start(seeds, where).items()}
            signs = np.array([_signs(seed, heads) for seed in seeds for heads in self.heads])
            counts = torch.as_tensor(signs).to(batch.tokens)
            margin, output_bound, loss_at = best_direction(start, batch, counts)
            targets = nearest_targets(start, batch.tokens, batch.labels, counts=counts)

            def record(networks: Parameters) -> dict[str, Tensor]:
                return {"loss": losses(networks, batch, counts)}

            trained = descend(start, batch, counts, self.step_size, self.trained, record, progress)["loss"]
        far = [theory.target_distance(steps=k, margin=margin, output_bound=output_bound) for k in self.horizons]
        found = {
            "printed": far,
            "needed": [targets.distance_for(1 / k) for k in self.horizons],
            "target_loss": [loss_at(distance) for distance in far],
            "farther_loss": [loss_at(2**0.5 * distance) for distance in far],
            "least_loss": [targets.loss_at(distance) for distance in far],
        }
        by_member = (len(seeds), widths, -1)
        arrays: Arrays = {
            name: (("seed", "heads", "k"), np.stack(values, 1).reshape(by_member)) for name, values in found.items()
        }
        arrays["train_loss"] = (("seed", "heads", "trained_k"), trained.T.reshape(by_member))
        return arrays

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold losses of targets against 1/K, and training losses against the bound with the measured distance."""
        scaled, least = data.k * data.target_loss, data.k * data.least_loss
        third, (first, last) = corollary_3(data, self.step_size), self.trained
        needed, many = data.needed / data.printed, {"heads": data.heads[data.heads >= MANY]}
        return {
            "MH-A2": {
                "largest_scaled_loss": highest((data.k * data.farther_loss).sel(many)),
                "largest_needed_over_printed": highest(needed.sel(many)),
                "largest_needed_few": highest(needed.isel(heads=0)),
            },
            "MH-P7": {
                "share_above_first": (scaled.sel(k=first) > 1).mean("heads").mean(),
                "share_above_last": (scaled.sel(k=last) > 1).mean("heads").mean(),
                "least_share_above_last": (least.sel(k=last) > 1).mean(),
                "scaled_loss_first": scaled.sel(k=first).median("heads"),
                "scaled_loss_last": scaled.sel(k=last).median("heads"),
            },
            "MH-C3": {
                "smallest_slack": lowest(np.log10(third / data.train_loss)),
                "largest_bound_last": highest(third.sel(trained_k=last)),
            },
        }


def corollary_3(data: xr.Dataset, step_size: float) -> xr.DataArray:
    """Return eq. (4) for the nearest target of loss 1/K: the bound on the training loss after K steps."""
    needed = data.needed.sel(k=data.trained_k)
    return (2 + 5 * needed**2 / (4 * step_size)) / data.trained_k


def _signs(seed: int, n_heads: float) -> np.ndarray:
    """Draw how many heads have each sign until both occur."""
    rng = stream(seed, "signs", f"{n_heads:g}")
    while (counts := starts.draw_sign_counts(n_heads, rng=rng)).min() == 0:
        pass
    return counts
