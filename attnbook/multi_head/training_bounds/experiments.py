"""The experiments of the chapter: Theorem 1 and Corollary 2 outside and inside their hypotheses, and certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import head_groups
from attnbook.multi_head.certificate import certify
from attnbook.multi_head.checks import increasing, positive
from attnbook.multi_head.data import double_device
from attnbook.multi_head.experiment_parts import slope
from attnbook.multi_head.generalisation_bounds import target_distance
from attnbook.multi_head.measures import relevant_mass
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.on_mixture import Stack, WideNetworks
from attnbook.multi_head.realizability import nearest_targets
from attnbook.multi_head.training_bounds.proof import InsideTheorem, Segments, averages

__all__ = ["Certificates", "InsideTheorem", "Segments", "TrainingBounds"]

MANY = 64  # from this many heads on, movements must follow their law, and realizability is judged


def followed(
    stack: Stack, step_size: float | Sequence[float], kept: Sequence[int], progress: Progress | None
) -> tuple[dict[str, np.ndarray], Parameters]:
    """Train; return losses, their averages and distances of each member at the kept steps, and the networks."""

    def record(networks: Parameters) -> dict[str, Tensor]:
        change = {name: networks[name] - stack.start[name] for name in networks}
        distance, largest = head_groups.norm(change, counts=stack.counts), largest_head_norm(change)
        return {"loss": stack.losses(networks), "distance": distance, "largest_move": largest}

    records, networks = stack.train(step_size, range(kept[-1] + 1), record, progress)
    records["average"] = averages(records["loss"])
    return {name: values[list(kept)].T for name, values in records.items()}, networks


@dataclass(frozen=True, kw_only=True)
class TrainingBounds(WideNetworks):
    """The conclusions at a practical step size, from four heads to a million million: far outside the hypotheses."""

    id = "multi_head.training_bounds"
    summary = "Theorem 1, Corollaries 2 and 3 outside their hypotheses, and targets, from four to 10^12 heads"
    budget_seconds = 20
    smoke = {"heads": (4, 64, 1e6), "steps": 100, "horizons": (10, 100), "wanted": (10, 100), "seeds": (0, 1)}
    axes = {"heads": "heads", "k": "wanted"}
    labels = {"sign": ("+", "-")}

    steps: int = 1000  # of gradient descent
    step_size: float = 0.5  # practical; not tuned
    horizons: tuple[int, ...] = (100, 1000)  # numbers of steps K at which both sides are compared
    wanted: tuple[int, ...] = (10, 30, 100, 300, 1000, 10_000, 1_000_000)  # K, for targets of loss 1/K
    records: int = 24  # log-spaced steps to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(step_size=self.step_size)
        increasing(1, count=2, horizons=self.horizons)
        if self.horizons[-1] > self.steps or not set(self.horizons) <= set(self.wanted):
            raise ValueError(f"horizons: expected wanted numbers up to {self.steps} steps, got {self.horizons}")

    def coordinates(self) -> dict[str, Any]:
        """Name the recorded steps, too."""
        return super().coordinates() | {"step": list(log_spaced(self.steps, self.records, also=self.horizons))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every width and look for targets."""
        stack, widths = self.stack(seeds, double_device(device)), len(self.heads)
        with threads(1):
            found, networks = followed(stack, self.step_size, self.coordinates()["step"], progress)
            tangent, first = stack.tangent(), stack.outputs(stack.start)
            targets = nearest_targets(stack.start, stack.tokens, stack.labels, counts=stack.counts)
        facts = {"margin": tangent.margin, "output_bound": stack.output_bound()}
        far = [target_distance(steps=k, **facts) for k in self.wanted]
        along = {name: [stack.losses(stack.towards(tangent.direction, times * d)).cpu() for d in far]
                 for name, times in {"target_loss": 1.0, "farther_loss": 2**0.5}.items()}  # fmt: skip
        nearest = {"least_loss": [targets.loss_at(distance) for distance in far],
                   "needed": [targets.distance_for(1 / k) for k in self.wanted]}  # fmt: skip
        norms = {"token_norm": stack.tokens.norm(dim=3).amax((1, 2)).clamp(min=1),
                 "head_norm": largest_head_norm(stack.start)}  # fmt: skip
        arrays = self.by_width({
            "margin": ((), tangent.margin),
            "start_output": ((), first.abs().amax(1)),
            "attention": (("sign",), relevant_mass(networks, stack.tokens, stack.relevant)),
            **{name: (("k",), np.stack(values, 1)) for name, values in (along | nearest).items()},
            **{name: (("step",), values) for name, values in found.items()},
        })  # fmt: skip
        return arrays | {name: (("seed",), values[::widths].cpu().numpy()) for name, values in norms.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off ratios of measured to stated, slopes in the number of heads, and how far targets are."""
        names, k = ("average", "loss", "distance"), list(self.horizons)
        at = data.drop_dims("step").sel(k=k).assign({name: data[name].sel(step=k).rename(step="k") for name in names})
        stated = stated_bounds(at, self.step_size)
        ratios = {"corollary": at.average / stated.corollary, "regret": at.average / stated.regret,
                  "distance": at.distance / (4 * stated.distance)}  # fmt: skip
        moved, many = abs(data.attention - self.relevant_fraction), data.where(data.heads >= MANY, drop=True)
        return {
            "MH-T1.1": {f"largest_ratio_{name}": highest(ratio) for name, ratio in ratios.items()},
            "MH-T1.5": {
                "slope_move": slope(many.largest_move.isel(step=-1), "heads"),
                "moved_few": data.attention.sel(sign="+").isel(heads=0) - self.relevant_fraction,
                "moved_many": highest(moved.isel(heads=-1)),
            },
            **self._targets(data, at),
        }

    def _targets(self, data: xr.Dataset, at: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold losses of targets against 1/K, and training losses against the bound with the measured distance."""
        scaled, least = at.k * at.target_loss, at.k * at.least_loss
        needed = data.needed / printed_distance(data, data.k)
        many = {"heads": data.heads >= MANY}
        third, (first, last) = (2 + 5 * at.needed**2 / (4 * self.step_size)) / at.k, ({"k": k} for k in (0, -1))
        return {
            "MH-A2": {
                "largest_scaled_loss": highest((data.k * data.farther_loss).sel(many)),
                "largest_needed_over_printed": highest(needed.sel(many)),
                "largest_needed_few": highest(needed.isel(heads=0)),
            },
            "MH-P7": {
                "share_above_first": (scaled.isel(first) > 1).mean("heads").mean(),
                "share_above_last": (scaled.isel(last) > 1).mean("heads").mean(),
                "least_share_above_last": (least.isel(last) > 1).mean(),
                "scaled_loss_first": scaled.isel(first).median("heads"),
                "scaled_loss_last": scaled.isel(last).median("heads"),
            },
            "MH-C3": {
                "smallest_slack": lowest(np.log10(third / at.loss)),
                "largest_bound_last": highest(third.isel(last)),
            },
        }


def printed_distance(data: xr.Dataset, steps: xr.DataArray) -> xr.DataArray:
    """Return $g_0(1/K)$ of Corollary 2 at the measured starts."""
    return xr.DataArray(target_distance(steps=steps, margin=data.margin, output_bound=data.start_output.clip(min=1)))


def stated_bounds(data: xr.Dataset, step_size: float) -> xr.Dataset:
    """Return the bounds of Corollary 2 and of Theorem 1 for each K, and the distance of the target."""
    distance = printed_distance(data, data.k)
    run: dict[str, Any] = {"distance": distance, "step_size": step_size, "steps": data.k}
    corollary, regret = (theory.regret_bound(target_loss=loss, **run) for loss in (1 / data.k, data.target_loss))
    return xr.Dataset({"corollary": corollary, "regret": regret, "distance": distance})


def demands(data: xr.Dataset, steps: np.ndarray) -> xr.Dataset:
    r"""Return what is asked for at measured starts and numbers of steps, and what it buys, by seed and steps.

    Heads: condition (3) with constant 1, and the printed pieces of Section 6.1. Step size there, Corollary 2 at it.
    """
    settings, late, k = data.attrs["settings"], data.isel(heads=-1), xr.DataArray(steps, {"steps": steps})
    far = printed_distance(late, k)
    sizes = {name: settings[name] for name in ("n_tokens", "dimension")} | {"token_norm": data.token_norm}
    sizes |= {"head_norm": data.head_norm.clip(min=1), "distance": far}
    sketch = theory.sketch_heads(**sizes)
    step_size = np.minimum(1.0, 1 / theory.smoothness(**sizes, n_heads=sketch))
    return xr.Dataset(
        {
            "order_heads": theory.order_heads(**sizes),
            "sketch_heads": sketch,
            "step_size": step_size,
            "bound": theory.regret_bound(target_loss=1 / k, distance=far, step_size=step_size, steps=k),
        }
    ).transpose("seed", "steps")


@dataclass(frozen=True, kw_only=True)
class Certificates(WideNetworks):
    """Theorem 1 with heads tracked one by one, every hypothesis met; then training at the certified step size."""

    id = "multi_head.certificates"
    summary = "Theorem 1 with heads tracked one by one: certificates, and training at their step size"
    budget_seconds = 60
    smoke = {"heads": (1e4, 1e6), "steps": 300, "seeds": (0, 1)}

    heads: tuple[float, ...] = (1e4, 3e4, 1e5, 2e5, 3e5, 5e5, 1e6, 1e12)  # increasing
    trained: float = 1e6  # the widths from this one on are trained
    steps: int = 1000  # of gradient descent
    records: int = 24  # log-spaced steps to keep
    seeds: tuple[int, ...] = tuple(range(25))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trained not in self.heads:
            raise ValueError(f"trained: expected one of the numbers of heads {self.heads}, got {self.trained}")

    def coordinates(self) -> dict[str, Any]:
        """Name the widths that are trained and the recorded steps, too."""
        wide_enough = [n_heads for n_heads in self.heads if n_heads >= self.trained]
        return super().coordinates() | {"trained": wide_enough, "step": list(log_spaced(self.steps, self.records))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Certify every width, train the wide ones."""
        where, at = double_device(device), self.coordinates()
        stack, wide, steps = self.stack(seeds, where), replace(self, heads=tuple(at["trained"])), at["step"]
        with threads(1):
            found = [
                certify(x, y, {name: tensor[m] for name, tensor in stack.start.items()}, stack.counts[m].tolist())
                for m, (x, y) in enumerate(zip(stack.tokens, stack.labels, strict=True))
            ]
            rates = [one.step_size for one in found if one.n_heads >= self.trained]
            history = followed(wide.stack(seeds, where), rates, steps, progress)[0]
        arrays = self.by_width({
            "bound": (("step",), [[one.bound_after(max(k, 1)) for k in steps] for one in found]),
            "step_size": ((), [one.step_size for one in found]),
            "ever": ((), [one.bound for one in found]),
        })  # fmt: skip
        return arrays | {
            name: (("seed", "trained", "step"), history[name].reshape(len(seeds), -1, len(steps)))
            for name in ("average", "largest_move")
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold training against its certificate, and count the heads from which on certificates say something."""
        bound, fewest = data.bound.sel(heads=data.trained.values).rename(heads="trained"), fewest_heads(data)
        return {
            "MH-T1-tracked": {
                "largest_bound": highest(bound.isel(step=-1)),
                "largest_ratio": highest((data.average / bound).isel(step=slice(1, None))),
                "largest_head_move": highest(data.largest_move.isel(step=-1)),
                "smallest_step_size": lowest(data.step_size.sel(heads=data.trained.values)),
                "fewest_heads": fewest,
                "most_heads_needed": highest(fewest),
            }
        }


def fewest_heads(data: xr.Dataset) -> xr.DataArray:
    """Return for each seed the width from which on all certificates of the grid are below log 2; infinite if none."""
    useless = data.heads.where(data.ever >= math.log(2)).max("heads").fillna(0)
    return data.heads.where(data.heads > useless).min("heads").fillna(math.inf)
