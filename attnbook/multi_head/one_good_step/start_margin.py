"""Proposition 2 at the start: norms, outputs and margins, without noise, with noise and after a real first phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.multi_head import oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture, double_device, draw
from attnbook.multi_head.one_good_step import start

READINGS, FORMS = ("signs", "uniform"), ("corrected", "printed")
JUDGED = 0.1  # noise over S^2 at which the sign of eq. (7) is judged
LARGE_NORMS = (2.0, 4.0, 8.0, 16.0)  # of the paper's example with noise of order S
UNIFORM_HEADS = (4, 1024, 10**6)  # for coefficients uniform on [-1, 1]
DRAWS = 20  # of these coefficients


def slope(values: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return the slope of the logarithm of values in the logarithm of a coordinate, by least squares."""
    x = np.log(values[dimension].astype(float))
    x = x - x.mean()
    return (np.log(values) * x).sum(dimension) / (x**2).sum()


@dataclass(frozen=True, kw_only=True)
class StartMargin(Experiment):
    r"""Proposition 2: P1, P2 and P3 at the start, and eq. (7) without noise, with noise and with a real first phase."""

    id = "multi_head.start_margin"
    summary = "Proposition 2: norms, outputs and margins at the start against the stated bounds"
    budget_seconds = 20
    smoke: ClassVar[Mapping[str, Any]] = {
        "n_samples": 100, "n_best": 10, "noises": (0.0, 0.1), "n_first": (100, 1000), "seeds": (0, 1), "chunk": 2,
    }  # fmt: skip
    large: ClassVar[Mapping[str, Any]] = {"n_samples": 20_000, "n_best": 200, "seeds": tuple(range(20)), "chunk": 1}

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 12  # of a token
    n_patterns: int = 4  # patterns M that say nothing
    shares: tuple[float, ...] = (0.4, 0.1)  # zeta; most claims use the first
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0)  # S
    noises: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.125)  # bound on noise along patterns over S^2, at most 1/8
    free_noise: float = 0.5  # norm of the noise orthogonal to all patterns
    n_samples: int = 2000  # over which the smallest margin is taken
    n_best: int = 40  # for which the best target is found
    step_norm: float = 2.0  # S where a real first phase is taken, with the first share
    step_noise: float = 0.05  # bound on noise along patterns there
    n_first: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)  # its samples; the fewer are the first of the more
    failure: float = 0.05  # delta of the bounds

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= min(self.noises) <= max(self.noises) <= 1 / 8 or not {0.0, JUDGED} <= set(self.noises):
            raise ValueError(f"noises: expected numbers up to 1/8, 0 and {JUDGED} among them, got {self.noises}")
        if not {1.0, 2.0, 4.0} <= set(self.pattern_norms):
            raise ValueError(f"pattern_norms: the claims need 1, 2 and 4, got {self.pattern_norms}")
        increasing("n_first", self.n_first)
        positive(n_samples=self.n_samples, n_best=self.n_best)
        if self.n_best > self.n_samples:
            raise ValueError(f"n_best: expected at most n_samples = {self.n_samples}, got {self.n_best}")

    def mixture(self, share: float, norm: float, noise: float) -> Mixture:
        """Return the data model of a cell; the noise is over the square of the norm."""
        z = noise * norm**2
        return Mixture(self.n_tokens, self.dimension, self.n_patterns, norm, share, z, z, self.free_noise)

    @property
    def step_mixture(self) -> Mixture:
        """The data model in which a real first phase is taken."""
        return self.mixture(self.shares[0], self.step_norm, self.step_noise / self.step_norm**2)

    def grown(self, norm: float) -> tuple[Mixture, int]:
        """Return a setting of the paper's example: all noise in proportion to S, and n_1 to S^2 d."""
        mixture = self.mixture(self.shares[0], norm, 0.1 / norm)
        return replace(mixture, free_noise=norm / 4), round(4 * norm**2 * self.dimension)

    def coordinates(self) -> dict[str, Any]:
        """Name cells, sizes and norms."""
        return {
            "share": list(self.shares), "norm": list(self.pattern_norms), "noise": list(self.noises),
            "n": list(self.n_first), "heads": list(UNIFORM_HEADS), "large_norm": list(LARGE_NORMS),
            "reading": list(READINGS), "form": list(FORMS), "part": ["at zero", "after the step"],
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure margins in all cells, and the three properties after a real first phase."""
        where, cells, grid = double_device(device), [], (len(self.shares), len(self.pattern_norms), len(self.noises))
        for number, place in enumerate(np.ndindex(grid)):
            cells.append(start.cell(self._cell(place), (self.n_samples, self.n_best), seeds, where))
            if told := share(progress, number, int(np.prod(grid))):
                told(1, 1)
        over_cells = {
            name: np.stack([one[name] for one in cells]).reshape(*grid, *cells[0][name].shape) for name in cells[0]
        }
        counts = np.moveaxis(over_cells.pop("counts"), 3, 0)
        worst = [start.worst_margin(self._cell((*place, -1)), seeds, where) for place in np.ndindex(grid[:2])]
        errors = [start.noise_free_errors(mixture, seeds, where) for mixture in start.SIZES]
        arrays: Arrays = {name: (("share", "norm", "noise", "seed"), values) for name, values in over_cells.items()}
        return arrays | {
            "counts": (("part", "share", "norm", "noise", "bin"), counts),  # of the first seed
            "worst": (("share", "norm", "seed"), np.reshape(worst, (*grid[:2], len(seeds)))),
            "noise_free_error": (("reading", "size", "seed"), [[one[r] for one in errors] for r in READINGS]),
            "jacobian_error": (("form",), jacobian_errors(self.n_tokens)),
            **self._real_step(seeds, where), **self._growth(seeds, where),
        }  # fmt: skip

    def _cell(self, place: tuple[int, ...]) -> Mixture:
        share, norm, noise = place
        return self.mixture(self.shares[share], self.pattern_norms[norm], self.noises[noise])

    def _real_step(self, seeds: tuple[int, ...], where: torch.device) -> Arrays:
        """Measure residual, head norms, outputs and margins after a real first phase of every size."""
        mixture = self.step_mixture
        true, batch = start.truth(mixture, seeds, where), draw(mixture, self.n_samples, seeds, device=where)
        first = draw(mixture, self.n_first[-1], seeds, purpose="first phase", device=where)
        m = torch.stack(
            [starts.first_phase_direction(first.tokens[:, :n], first.labels[:, :n]) for n in self.n_first], 1
        )
        residual = m - mixture.relevant_fraction / 4 * true.signal[:, None]
        zero, pull = start.parts(batch, true)
        read = self.n_tokens * torch.einsum("bn,bnd,bsd->bsn", batch.labels, batch.tokens.mean(2), m)
        found = {
            "residual": residual.norm(dim=2),
            "head_norm": self.n_tokens**0.5 * m.norm(dim=2),
            "output": read.abs().amax(2),  # largest, of one head
            "right": read.amin(2),  # smallest output times label, of one head with a plus sign
            "step_margin": (zero[:, None] + torch.einsum("bnd,bsd->bsn", pull, m)).amin(2),
            # what the residual takes off a sample's margin at most, for each unit of its norm
            "lost": -torch.einsum("bnd,bsd->bsn", pull, residual).amin(2) / residual.norm(dim=2),
        }
        arrays: Arrays = {name: (("seed", "n"), tensor.cpu().numpy()) for name, tensor in found.items()}
        arrays["worst_drop"] = (("seed",), pull.norm(dim=2).amax(1).cpu().numpy())  # by any residual of norm one
        attention = torch.einsum("bnd,bd->bn", pull, m[:, -1])
        uniform = np.empty((len(seeds), len(UNIFORM_HEADS), DRAWS))
        for i, j in np.ndindex(uniform.shape[:2]):
            rng = stream(seeds[i], "uniform", UNIFORM_HEADS[j])
            for k in range(DRAWS):
                mean = float(np.abs(rng.uniform(-1, 1, UNIFORM_HEADS[j])).mean())
                uniform[i, j, k] = float((zero[i] + mean * attention[i]).min())
        return arrays | {"uniform_margin": (("seed", "heads", "draw"), uniform)}

    def _growth(self, seeds: tuple[int, ...], where: torch.device) -> Arrays:
        """Measure smallest margins above that of the linear model as patterns grow."""
        gain = []
        for norm in LARGE_NORMS:
            mixture, n_first = self.grown(norm)
            first = draw(mixture, n_first, seeds, purpose="growing first phase", device=where)
            m = starts.first_phase_direction(first.tokens, first.labels)
            batch = draw(mixture, min(self.n_samples, 500), seeds, purpose="growing", device=where)
            margin = start.at(*start.parts(batch, start.truth(mixture, seeds, where)), m).amin(1)
            gain.append(margin.cpu().numpy() - oracle.linear_margin(mixture))
        return {"gain": (("large_norm", "seed"), gain)}

    def of_cells(self, data: xr.Dataset, formula: Callable[[Mixture], float]) -> xr.DataArray:
        """Return a formula of the mixture at every cell."""
        dims = ("share", "norm", "noise")
        values = np.reshape(
            [formula(self._cell(at)) for at in np.ndindex(*(data.sizes[d] for d in dims))],
            [data.sizes[d] for d in dims],
        )
        return xr.DataArray(values, dims=dims, coords={d: data[d] for d in dims})

    def after_step(self, data: xr.Dataset, *, sharper: bool = False) -> xr.DataArray:
        """Return the whole of eq. (7), or of our bound, after the real first phase, with the residual it had."""
        mixture = self.step_mixture
        if sharper:
            return theory.margin_bound(mixture) - theory.residual_price(mixture) * data.residual
        return oracle.first_phase_margin(mixture) - theory.stated_residual_price(mixture) * data.residual

    def samples_required(self) -> dict[tuple[str, str], float]:
        """Return the n_1 from which a margin bound is positive, by (size of the residual, margin bound).

        Sizes: eq. (6) with C = 1 and "likely" (Chebyshev's inequality) hold with probability 1 - failure; "typical".
        """
        mixture, typical = self.step_mixture, theory.residual_size(self.step_mixture, 1)
        spreads = {
            "eq. (6)": theory.residual_bound(mixture, 1, failure=self.failure),
            "likely": typical / self.failure**0.5, "typical": typical,
        }  # fmt: skip
        bounds = {
            "stated": theory.stated_residual_price(mixture) / oracle.first_phase_margin(mixture),
            "ours": theory.residual_price(mixture) / theory.margin_bound(mixture),
        }
        return {(size, name): (s * price) ** 2 for size, s in spreads.items() for name, price in bounds.items()}

    def first_gain(self) -> float:
        """Return the S, a power of two, from which eq. (7) promises more than a linear model in the paper's example."""
        for norm in 2.0 ** np.arange(1, 21):
            mixture, n_first = self.grown(float(norm))
            residual = theory.residual_size(mixture, n_first)
            if oracle.first_phase_margin(mixture, residual=residual) > oracle.linear_margin(mixture):
                return float(norm)
        return np.inf

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the three properties, and margins over the stated bound and over ours."""
        return self._properties(data) | self._margins(data)

    def _properties(self, data: xr.Dataset) -> dict[str, dict[str, Any]]:
        mixture = self.step_mixture
        p = [theory.residual_size(mixture, size) / self.failure**0.5 for size in self.n_first]
        bound = partial(theory.output_bound, mixture, n_samples=self.n_samples, failure=self.failure)
        heads = xr.apply_ufunc(lambda one: theory.head_norm_bound(mixture, one), data.residual, vectorize=True)
        output = xr.apply_ufunc(bound, data.residual, vectorize=True)
        our_heads = xr.DataArray(
            [theory.head_norm_bound(mixture, one, sharper=True) for one in p], coords={"n": data.n}
        )
        our_output = xr.DataArray([bound(one, sharper=True) for one in p], coords={"n": data.n})
        likely = data.output * max(sign_quantile(h, self.failure) for h in (1, 4, 16, 64))
        free, half = oracle.first_phase_margin(mixture), oracle.first_phase_margin(mixture) / 2
        spread = (data.uniform_margin.max("draw") - data.uniform_margin.min("draw")) / data.uniform_margin.mean("draw")
        needed = theory.heads_required(mixture, margin=free, output=bound(float(data.residual.max())))
        return {
            "MH-P2.1": {
                "largest_ratio": highest(data.head_norm / heads),
                "largest_ratio_ours": highest(data.head_norm / our_heads),
            },
            "MH-P2.2": {
                "largest_ratio": highest(likely / output), "largest_ratio_ours": highest(likely / our_output),
                "smallest_reading": lowest(data.right),
            },
            "MH-P2.3": {
                "smallest_over_half": lowest(data.step_margin / half),
                "smallest_over_half_uniform": lowest(data.uniform_margin.isel(heads=-1, drop=True) / half),
                "relative_spread_4": spread.sel(heads=4, drop=True),
                "relative_spread_1024": spread.sel(heads=1024, drop=True),
                "heads_required": xr.DataArray(needed),
            },
            "MH-P2.6": {
                "bound": self.after_step(data).isel(n=-1, drop=True), "margin": data.step_margin.isel(n=-1, drop=True),
                "required_samples": xr.DataArray(self.samples_required()["eq. (6)", "stated"]),
            },
            "MH-P2.7": {
                "slope": slope(data.gain, "large_norm"), "formula_gains_from": xr.DataArray(self.first_gain()),
            },
        }  # fmt: skip

    def _margins(self, data: xr.Dataset) -> dict[str, dict[str, Any]]:
        stated, ours = (self.of_cells(data, f) for f in (oracle.first_phase_margin, theory.margin_bound))
        judged = {"share": self.shares[0], "norm": 2.0, "noise": JUDGED}
        most = {"share": self.shares[-1], "norm": 4.0}
        gain = (data.best / data.best_zero).sel(share=self.shares[0], noise=0.0, drop=True)
        error, noisy = data.noise_free_error, {"noise": data.noise > 0}
        price, paid = theory.residual_price(self.step_mixture), np.maximum(data.lost.max("n"), data.worst_drop)
        required = self.samples_required()
        return {
            "MH-B13.2": {f"relative_error_{form}": data.jacobian_error.sel(form=form, drop=True) for form in FORMS},
            "MH-P2.4": {f"relative_error_{r}": highest(error.sel(reading=r, drop=True)) for r in READINGS},
            "MH-P2.5": {
                "smallest_margin_minus_bound": lowest((data.margin - stated).sel(noisy)),
                "bound_judged": stated.sel(judged, drop=True),
                "margin_judged": lowest(data.margin.sel(judged, drop=True)),
                "share_positive": (stated > 0).mean(),
            },
            "MH-P2.5-ours": {
                "smallest_margin_minus_ours": lowest((data.margin - ours).sel(noisy)),
                "smallest_gain": (ours - stated).sel(noisy).min(),
                "smallest_ours": ours.sel(share=self.shares[0]).min(),
                "smallest_worst_minus_ours": lowest(data.worst - ours.isel(noise=-1, drop=True)),
                "smallest_worst_norm_4": lowest(data.worst.sel(most, drop=True)),
                "smallest_step_bound": lowest(self.after_step(data, sharper=True).isel(n=-1, drop=True)),
                "smallest_step_margin_minus_ours": lowest(data.step_margin - self.after_step(data, sharper=True)),
                "drop_over_price": highest(paid / price),
                "price_over_stated": xr.DataArray(price / theory.stated_residual_price(self.step_mixture)),
                "required_samples": xr.DataArray(required["likely", "ours"]),
            },
            "MH-P2.3-zero": {f"gain_norm_{s}": gain.sel(norm=float(s), drop=True) for s in (1, 4)},
        }  # fmt: skip


def sign_quantile(n_heads: int, failure: float) -> float:
    """Return what the size of the random sum of signs stays within with probability 1 - failure, exactly."""
    values, probabilities = theory.sign_sums(n_heads)
    order = np.argsort(np.abs(values))
    within = probabilities[order].cumsum() >= 1 - failure - 1e-12
    return float(np.abs(values)[order][within.argmax()])


def jacobian_errors(n_tokens: int) -> list[float]:
    """Return the relative errors of the softmax Jacobian at zero, with and without one over the number of tokens."""
    true = torch.func.jacrev(lambda v: v.softmax(0))(torch.zeros(n_tokens, dtype=torch.float64))
    printed = torch.eye(n_tokens, dtype=torch.float64) - 1 / n_tokens
    return [float((form - true).norm() / true.norm()) for form in (printed / n_tokens, printed)]


def increasing(name: str, numbers: Sequence[float], *, least: int = 2) -> None:
    """Refuse numbers that are not positive and increasing, or too few."""
    if len(numbers) < least or list(numbers) != sorted(set(numbers)) or numbers[0] <= 0:
        raise ValueError(f"{name}: expected at least {least} increasing positive numbers, got {numbers}")


def positive(**numbers: int) -> None:
    """Refuse numbers below one, by name."""
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
