"""The experiments of the chapter: what one step from zero writes, what margin it leaves, and training from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Drawn, Mixture, double_device, draw
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.one_good_step import start
from attnbook.multi_head.one_good_step.start_margin import StartMargin, increasing, positive, slope

__all__ = ["AfterStart", "FirstPhase", "StartMargin"]

AT_ONCE = 10_000  # samples drawn together; they take 16 MB
STARTS = ("zero", "even", "lucky", "unlucky")  # zero; the first phase with 1/2, 3/4, 1/4 of the signs plus


@dataclass(frozen=True, kw_only=True)
class FirstPhase(Experiment):
    r"""Lemma 2: the step by the gradient against its closed form, and $m=U_h^{(1)}/\alpha_h$ over samples."""

    id = "multi_head.first_phase"
    summary = "Lemma 2: what one step from zero writes, and what of it is not signal"
    budget_seconds = 15
    smoke = {"n_first": (100, 1000), "dimensions": (20, 40), "n_checked": 100, "seeds": (0, 1), "chunk": 2}
    large = {"n_first": (100, 300, 1000, 3000, 10_000, 30_000, 100_000), "seeds": tuple(range(50)), "chunk": 5}

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 20  # of a token
    n_patterns: int = 4  # patterns M that say nothing
    pattern_norm: float = 2.0  # norm S of every pattern
    relevant_fraction: float = 0.2  # share zeta of tokens that carry the label
    noise: float = 0.2  # bound on the noise along patterns
    free_noise: float = 0.5  # norm of the noise orthogonal to all patterns
    n_first: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)  # samples; the fewer are the first of the more
    judged: int = 1000  # the size at which the coefficient is judged
    dimensions: tuple[int, ...] = (20, 80, 320)  # at which the residual is measured too, with the fewest samples
    wide_noise: float = 4.0  # free noise there, so large that it makes up most of the residual
    n_heads: int = 4  # of the network that takes the step by its gradient
    n_checked: int = 1000  # samples on which the assumptions on the data are checked
    failure: float = 0.05  # delta of the residual bound
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing("n_first", self.n_first)
        if self.judged not in self.n_first:
            raise ValueError(f"judged: expected one of n_first = {self.n_first}, got {self.judged}")
        positive(n_heads=self.n_heads, n_checked=self.n_checked)
        for dimension in self.dimensions:
            _ = self.at_dimension(dimension)

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction)
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def at_dimension(self, dimension: int) -> Mixture:
        """Return the data model at another dimension, with much noise off the patterns."""
        return replace(self.mixture, dimension=dimension, free_noise=self.wide_noise)

    def coordinates(self) -> dict[str, Any]:
        """Name sizes of the first phase and dimensions."""
        return {"n": list(self.n_first), "d": list(self.dimensions)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Check the data, take the step and measure what it wrote."""
        where = double_device(device)
        found = {**start.violations(self.mixture, self.n_checked, seeds), **self._step(seeds, where)}
        arrays: Arrays = {name: (("seed",), values) for name, values in found.items()}
        return arrays | self._written(seeds, where)

    def _step(self, seeds: tuple[int, ...], where: torch.device) -> dict[str, np.ndarray]:
        """Take the step of all heads by the gradient at zero, with alternating signs."""
        batch = draw(self.mixture, self.n_first[0], seeds, purpose="first phase 0", device=where)
        one = starts.zero(len(seeds), self.n_tokens, self.dimension, device=where)
        zero = {name: tensor.expand(-1, self.n_heads, -1, -1) for name, tensor in one.items()}
        gradient = layer.value_and_gradient(zero, batch.tokens, logistic(batch.labels))[1]
        alpha = torch.tensor([(-1.0) ** h for h in range(self.n_heads)], dtype=torch.float64, device=where)
        after = {name: -(alpha * self.n_heads**0.5)[:, None, None] * tensor for name, tensor in gradient.items()}
        formula = starts.first_phase(batch.tokens, batch.labels, coefficients=alpha)
        found = {
            "key_query_entry": after["key_query"],
            "row_difference": after["decoder"] - after["decoder"][:, :, :1],
            "step_error": after["decoder"] - formula["decoder"],
        }
        return {name: tensor.abs().amax((1, 2, 3)).cpu().numpy() for name, tensor in found.items()}

    def _written(self, seeds: tuple[int, ...], where: torch.device) -> Arrays:
        """Measure what the direction of the first phase holds, at every size and every dimension."""
        true, part = start.truth(self.mixture, seeds, where), self.relevant_fraction / 4
        m = torch.stack(directions(self.mixture, self.n_first, seeds, where), dim=1)
        wide = []
        for dimension in self.dimensions:
            mixture = self.at_dimension(dimension)
            direction = directions(mixture, self.n_first[:1], seeds, where)[0]
            wide.append((direction - part * start.truth(mixture, seeds, where).signal).norm(dim=1))
        found = {
            "coefficient": torch.einsum("bsd,bd->bs", m, true.signal) / (8 * part * self.pattern_norm**2),
            "residual": (m - part * true.signal[:, None]).norm(dim=2),
            "residual_half": (m - 2 * part * true.signal[:, None]).norm(dim=2),  # as if the text's zeta/2 were right
        }
        arrays: Arrays = {name: (("seed", "n"), tensor.cpu().numpy()) for name, tensor in found.items()}
        return arrays | {"residual_by_dimension": (("seed", "d"), torch.stack(wide, dim=1).cpu().numpy())}

    def over_n(self, data: xr.Dataset, formula: Callable[[Mixture, int], float]) -> xr.DataArray:
        """Return a formula of the mixture and the size of the first phase, at every size."""
        return xr.DataArray([formula(self.mixture, int(n)) for n in data.n], coords={"n": data.n})

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the coefficient, the rate of the residual, and its size over the law and over the bound."""
        law = data.residual / self.over_n(data, theory.residual_size)
        bound = self.over_n(data, lambda mixture, n: theory.residual_bound(mixture, n, failure=self.failure))
        typical = np.sqrt((data.residual_by_dimension**2).mean("seed"))
        plateau = self.relevant_fraction * self.pattern_norm * 2**0.5 / 4  # norm of zeta/4 u_star
        return {
            "MH-DATA": {
                "largest_violation": highest(data.violation), "largest_gram_error": highest(data.gram_error),
                "largest_relevant_token_error": highest(data.relevant_error),
            },
            "MH-L2.1": {
                "largest_key_query_entry": highest(data.key_query_entry),
                "largest_row_difference": highest(data.row_difference),
                "largest_error_of_closed_form": highest(data.step_error),
            },
            "MH-L2.2": {
                "coefficient": data.coefficient.sel(n=self.judged, drop=True),
                "left_by_half_over_plateau": data.residual_half.isel(n=-1, drop=True) / plateau,
            },
            "MH-L2.3": {"slope": slope(data.residual, "n"), "implied_constant": highest(data.residual / bound)},
            "MH-L2.3-exact": {
                "rms_over_law": np.sqrt((law**2).mean()), "largest_over_smallest": typical.max() / typical.min(),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AfterStart(Experiment):
    """Training from zero and from first-phase starts with different signs; each start with every step size.

    Data and step sizes were chosen after trials with easier data, where at its best step size every start was done at
    once.
    """

    id = "multi_head.after_start"
    summary = "Training from zero and from first-phase starts with lucky and unlucky signs"
    budget_seconds = 15
    smoke = {"n_samples": 10, "n_first": 300, "step_sizes": (1.0, 10.0), "steps": 100, "seeds": (0, 1)}
    large = {"n_samples": 200, "steps": 1000, "seeds": tuple(range(20))}

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 12  # of a token
    n_patterns: int = 4  # patterns M that say nothing
    pattern_norm: float = 2.0  # norm S of every pattern
    relevant_fraction: float = 0.1  # share zeta of tokens that carry the label
    noise: float = 0.5  # bound on the noise along patterns
    free_noise: float = 0.5  # norm of the noise orthogonal to all patterns
    n_samples: int = 40  # training samples
    n_first: int = 1000  # samples of the first phase
    n_heads: int = 16  # a multiple of four
    step_sizes: tuple[float, ...] = (0.5, 1.0, 3.0, 10.0)  # of the second phase
    judged: float = 1.0  # the step size at which starts are compared
    steps: int = 130  # of gradient descent
    reached: float = 0.01  # training loss whose first passing is timed
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_heads < 4 or self.n_heads % 4:
            raise ValueError(f"n_heads: expected a multiple of four, got {self.n_heads}")
        increasing("step_sizes", self.step_sizes, least=1)
        if self.judged not in self.step_sizes:
            raise ValueError(f"judged: expected one of step_sizes = {self.step_sizes}, got {self.judged}")
        positive(n_samples=self.n_samples, n_first=self.n_first, steps=self.steps)

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction)
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def coordinates(self) -> dict[str, Any]:
        """Name starts and step sizes."""
        return {"start": list(STARTS), "step_size": list(self.step_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train from every start with every step size, all as one program."""
        where = double_device(device)
        batch = draw(self.mixture, self.n_samples, seeds, device=where)
        first = draw(self.mixture, self.n_first, seeds, purpose="first phase", device=where)
        sizes, repeats = len(self.step_sizes), len(STARTS) * len(self.step_sizes)
        tokens, labels = (part.repeat_interleave(repeats, dim=0) for part in batch[:2])
        half, quarter = self.n_heads / 2, self.n_heads / 4
        plus = torch.tensor([half, half, 3 * quarter, quarter], dtype=torch.float64, device=where)
        counts = torch.stack([plus, self.n_heads - plus], 1).repeat_interleave(sizes, dim=0).repeat(len(seeds), 1)
        objective = logistic(labels)

        def record(parameters: Parameters) -> dict[str, Tensor]:
            return {"loss": objective(layer.outputs(parameters, tokens, counts=counts))[0]}

        history = head_groups.gradient_descent(
            self._starts(first), tokens, objective, counts=counts, record=record, record_at=range(self.steps + 1),
            step_size=list(self.step_sizes) * (len(STARTS) * len(seeds)), steps=self.steps, progress=progress,
        )  # fmt: skip
        loss = np.asarray(history.records["loss"]).T.reshape(len(seeds), len(STARTS), sizes, -1)
        return summaries(loss, self.reached)

    def _starts(self, first: Drawn) -> Parameters:
        """Return all starts of all seeds, once for each step size; only zero differs but for the counts."""
        one, sizes = starts.first_phase(first.tokens, first.labels), len(self.step_sizes)
        present = torch.tensor(
            [float(name != "zero") for name in STARTS], dtype=torch.float64, device=first.tokens.device
        )
        scale = present.repeat_interleave(sizes).repeat(len(first.tokens))[:, None, None, None]
        return {name: scale * tensor.repeat_interleave(len(STARTS) * sizes, dim=0) for name, tensor in one.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how much longer zero takes, and whether unlucky signs cost anything."""
        here = data.sel(step_size=self.judged, drop=True)
        needed = {name: here.steps_needed.sel(start=name, drop=True) for name in STARTS}
        return {
            "MH-START-steps": {
                "smallest_zero_over_even": lowest(needed["zero"] / needed["even"]),
                "largest_zero_over_even": highest(needed["zero"] / needed["even"]),
                "largest_rise": highest(here.largest_rise),
                "smallest_first_loss_unlucky": lowest(data.first_loss.sel(start="unlucky", drop=True)),
                "largest_unlucky_over_zero": highest(needed["unlucky"] / needed["zero"]),
            }
        }  # fmt: skip


def summaries(loss: np.ndarray, reached: float) -> Arrays:
    """Return first and largest losses, largest rises and times, from losses (seeds, starts, step sizes, steps)."""
    below, axes = loss <= reached, ("seed", "start", "step_size")
    return {
        "first_loss": (axes[:2], loss[:, :, 0, 0]),
        "largest_rise": (axes, np.diff(loss).max(3)),  # in one step; negative if there is none
        "largest_loss": (axes, loss.max(3)),
        "steps_needed": (axes, np.where(below.any(3), below.argmax(3), np.inf)),
    }


def directions(mixture: Mixture, sizes: Sequence[int], seeds: Sequence[int], where: torch.device) -> list[Tensor]:
    """Return m for each of the increasing sizes, of which the smaller are the first samples of the larger."""
    total, done, found = torch.zeros((), dtype=torch.float64, device=where), 0, []
    for size in sizes:
        while done < size:
            number = min(size - done, AT_ONCE)
            own = [draw(mixture, number, [seed], purpose=f"first phase {done}", device=where) for seed in seeds]
            total = total + number * torch.cat([starts.first_phase_direction(*one[:2]) for one in own])
            done += number
        found.append(total / size)
    return found
