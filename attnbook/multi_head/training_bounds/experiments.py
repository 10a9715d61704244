"""The experiments of the chapter: Theorem 1 and Corollary 2 outside and inside their hypotheses, and certificates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import layer, network
from attnbook.multi_head.certificate import certify, heads_for
from attnbook.multi_head.data import double_device
from attnbook.multi_head.generalisation_bounds import target_distance
from attnbook.multi_head.tangent_kernel import linearised_outputs, tangent_margin
from attnbook.multi_head.training_bounds import wide
from attnbook.multi_head.training_bounds.equal_heads import EqualHeads
from attnbook.multi_head.training_bounds.inside import InsideTheorem
from attnbook.multi_head.training_bounds.segments import Segments

__all__ = ["Certificates", "EqualHeads", "InsideTheorem", "Segments", "TrainingBounds"]

MANY = 64  # from this many heads on, the largest movement must follow its law
ROUNDING = 1e-9  # outputs that differ by less are equal up to rounding


@dataclass(frozen=True, kw_only=True)
class TrainingBounds(wide.WideNetworks):
    """The conclusions at a practical step size, from four heads to a million million: far outside the hypotheses.

    Averages and distances are set beside the bounds for the target at distance $g_0(1/K)$ in the direction of largest
    tangent-kernel margin, whose loss is measured.
    """

    id = "multi_head.training_bounds"
    summary = "Theorem 1 and Corollary 2 outside their hypotheses, from four to a million million heads"
    budget_seconds = 15
    smoke = {"heads": (4, 64, 1e6), "steps": 100, "horizons": (10, 100), "seeds": (0, 1)}

    step_size: float = 0.5  # practical; not tuned
    horizons: tuple[int, ...] = (100, 1000)  # numbers of steps K at which both sides are compared
    records: int = 24  # log-spaced steps to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_size > 0:
            raise ValueError(f"step_size: expected a positive number, got {self.step_size}")
        if not self.horizons or not 1 <= min(self.horizons) <= max(self.horizons) <= self.steps:
            raise ValueError(f"horizons: expected numbers between 1 and {self.steps} steps, got {self.horizons}")
        if sum(n_heads >= MANY for n_heads in self.heads) < 2:
            raise ValueError(f"heads: expected at least two of at least {MANY}, got {self.heads}")

    def coordinates(self) -> dict[str, Any]:
        """Name widths, steps, signs and horizons."""
        step = log_spaced(self.steps, self.records, also=self.horizons)
        return {"heads": list(self.heads), "step": list(step), "sign": ["+", "-"], "horizon": list(self.horizons)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every width and look at the linearised network and its targets."""
        stack, widths = wide.draw_stack(self, seeds, double_device(device)), len(self.heads)
        with threads(1):
            found = wide.train(stack, self.step_size, self.steps, self.coordinates()["step"], progress)
            tangent = tangent_margin(stack.start, stack.tokens, stack.labels, counts=stack.counts)
        first = layer.outputs(stack.start, stack.tokens, counts=stack.counts)
        linear = linearised_outputs(first, stack.labels, tangent.gram, step_size=self.step_size, steps=self.steps)
        both = ("seed", "heads")
        arrays = {
            "linear_gap": (both, (found["outputs"] - linear).abs().amax(1).cpu().numpy()),
            "margin": (both, tangent.margin),
            "start_output": (both, first.abs().amax(1).cpu().numpy()),
            "attention": ((*both, "sign"), found["attention"]),
            **{name: ((*both, "step"), found[name]) for name in ("loss", "average", "distance", "largest_move")},
        }
        bound = first.abs().amax(1).clamp(min=1).cpu().numpy()
        far = [target_distance(steps=k, margin=tangent.margin, output_bound=bound) for k in self.horizons]
        target_loss = np.stack([_loss_at(stack, tangent.direction, distance) for distance in far], axis=1)
        arrays["target_loss"] = ((*both, "horizon"), target_loss)
        shaped = {
            name: (dims, values.reshape(len(seeds), widths, *values.shape[1:]))
            for name, (dims, values) in arrays.items()
        }
        norms = {
            "token_norm": stack.tokens.norm(dim=3).amax((1, 2)).clamp(min=1),
            "head_norm": network.largest_head_norm(stack.start),
        }
        return shaped | {name: (("seed",), values[::widths].cpu().numpy()) for name, values in norms.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off ratios of measured to stated and slopes in the number of heads."""
        stated, at = stated_bounds(data, self.step_size), at_horizons(data)
        ratios = {"corollary": at.average / stated.corollary, "regret": at.average / stated.regret,
                  "distance": at.distance / (4 * stated.distance)}  # fmt: skip
        above, moved = data.linear_gap.min("seed") > ROUNDING, abs(data.attention - self.relevant_fraction)
        return {
            "MH-T1.1": {f"largest_ratio_{name}": highest(ratio) for name, ratio in ratios.items()},
            "MH-T1.5": {
                "slope_move": _slope(data.largest_move.isel(step=-1)),
                "slope_gap": _slope(data.linear_gap.where(above, drop=True)),
                "moved_few": data.attention.sel(sign="+").isel(heads=0) - self.relevant_fraction,
                "moved_many": highest(moved.isel(heads=-1)),
            },
        }


def stated_bounds(data: xr.Dataset, step_size: float) -> xr.Dataset:
    """Return the bounds of Corollary 2 and of Theorem 1 at the horizons, and the distance of the target."""
    bound, k = data.start_output.clip(min=1), data.horizon
    distance = (2 * bound + np.log(k)) / data.margin
    farther = 5 * distance**2 / (4 * step_size * k)
    regret = 2 * data.target_loss + farther
    return xr.Dataset({"corollary": 2 / k + farther, "regret": regret, "distance": distance})


def at_horizons(data: xr.Dataset) -> xr.Dataset:
    """Return what was recorded, at the horizons."""
    return data.drop_dims("horizon").sel(step=data.horizon.values).rename(step="horizon")


def demands(data: xr.Dataset, steps: np.ndarray) -> xr.Dataset:
    r"""Return what is asked for at measured starts and numbers of steps, and what it buys, by seed and steps.

    Heads: condition (3) with constant 1, the printed pieces of Section 6.1, and those of a certificate, whose target is
    at $\sqrt2\,g_0$. The step size of Section 6.1, and the bound of Corollary 2 at it.
    """
    found, settings = [], data.attrs["settings"]
    for seed in data.seed:
        facts = {name: float(data[name].sel(seed=seed)) for name in ("token_norm", "head_norm")}
        margin, output = (float(data[name].sel(seed=seed).isel(heads=-1)) for name in ("margin", "start_output"))
        start = {"margin": margin, "output_bound": max(1.0, output)}
        small: dict[str, Any] = {"n_tokens": settings["n_tokens"], "token_norm": facts["token_norm"]}
        sizes = small | {"dimension": settings["dimension"], "head_norm": max(1.0, facts["head_norm"])}
        found.append([_demands(float(k), start, small, sizes, facts["head_norm"]) for k in steps])
    names = ("order_heads", "sketch_heads", "certificate_heads", "step_size", "bound")
    arrays = {
        name: (("seed", "steps"), values)
        for name, values in zip(names, np.moveaxis(np.array(found), 2, 0), strict=True)
    }
    return xr.Dataset(arrays, coords={"seed": data.seed, "steps": steps})


def _demands(
    steps: float, start: dict[str, float], small: dict[str, Any], sizes: dict[str, Any], head_norm: float
) -> tuple[float, ...]:
    distance = float(target_distance(steps=steps, **start))
    order, sketch = theory.order_heads(**sizes, distance=distance), theory.sketch_heads(**sizes, distance=distance)
    tracked = heads_for(math.sqrt(2) * distance, **small, start_head_norm=head_norm)
    step_size = min(1.0, 1 / theory.smoothness(**sizes, n_heads=sketch, distance=distance))
    return order, sketch, tracked, step_size, theory.final_bound(steps=steps, step_size=step_size, **start)


def _loss_at(stack: wide.Stack, direction: Parameters, distance: np.ndarray) -> np.ndarray:
    """The losses of the targets at these distances in a direction."""
    far = torch.tensor(distance).to(stack.tokens)[:, None, None, None]
    return np.asarray(stack.losses({name: stack.start[name] + far * direction[name] for name in direction}).cpu())


def _slope(values: xr.DataArray) -> xr.DataArray:
    """The slopes in the number of heads on log axes, from MANY heads on."""
    many = values.where(values.heads >= MANY, drop=True)
    logs = np.log(many.heads) - np.log(many.heads).mean()
    return (np.log(many) * logs).sum("heads") / (logs**2).sum()


@dataclass(frozen=True, kw_only=True)
class Certificates(wide.WideNetworks):
    """Theorem 1 with heads tracked one by one, every hypothesis met; then training at the certified step size."""

    id = "multi_head.certificates"
    summary = "Theorem 1 with heads tracked one by one: certificates, and training at their step size"
    budget_seconds = 60
    smoke = {"heads": (1e4, 1e6), "steps": 300, "seeds": (0, 1)}

    heads: tuple[float, ...] = (1e4, 3e4, 1e5, 2e5, 3e5, 5e5, 1e6, 1e12)  # increasing
    trained: float = 1e6  # the widths from this one on are trained
    records: int = 24  # log-spaced steps to keep
    seeds: tuple[int, ...] = tuple(range(25))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trained not in self.heads:
            raise ValueError(f"trained: expected one of the numbers of heads {self.heads}, got {self.trained}")

    def coordinates(self) -> dict[str, Any]:
        """Name widths and steps."""
        wide_enough = [n_heads for n_heads in self.heads if n_heads >= self.trained]
        return {"heads": list(self.heads), "trained": wide_enough, "step": list(log_spaced(self.steps, self.records))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Certify every width, train the wide ones."""
        stack, shape = wide.draw_stack(self, seeds, double_device(device)), (len(seeds), len(self.heads))
        steps = self.coordinates()["step"]
        with threads(1):
            found = [
                certify(x, y, {name: tensor[m] for name, tensor in stack.start.items()}, stack.counts[m].tolist())
                for m, (x, y) in enumerate(zip(stack.tokens, stack.labels, strict=True))
            ]
            members = np.flatnonzero(np.tile(np.array(self.heads) >= self.trained, len(seeds)))
            start = {name: tensor[members] for name, tensor in stack.start.items()}
            part = wide.Stack(stack.tokens[members], stack.labels[members], stack.relevant[members], start,
                              stack.counts[members])  # fmt: skip
            rates = [found[m].step_size for m in members]
            history = wide.train(part, rates, self.steps, steps, progress)
        bound = [[one.bound_after(max(k, 1)) for k in steps] for one in found]
        arrays = {"bound": np.array(bound).reshape(*shape, -1)}
        arrays |= {name: np.array([getattr(one, name) for one in found]).reshape(shape)
                   for name in ("step_size", "fewest_heads")}  # fmt: skip
        arrays["ever"] = np.array([one.bound for one in found]).reshape(shape)
        trained = {"average": history["average"], "last": history["loss"], "largest_move": history["largest_move"]}
        dims = {"bound": ("seed", "heads", "step")}
        return {name: (dims.get(name, ("seed", "heads")), values) for name, values in arrays.items()} | {
            name: (("seed", "trained", "step"), values.reshape(len(seeds), -1, len(steps)))
            for name, values in trained.items()
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold training against its certificate, and count the heads from which on certificates say something."""
        bound = data.bound.sel(heads=data.trained.values).rename(heads="trained")
        ratio = (data.average / bound).isel(step=slice(1, None))
        fewest = fewest_heads(data)
        return {
            "MH-T1-tracked": {
                "largest_bound": highest(bound.isel(step=-1)),
                "largest_ratio": highest(ratio),
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
