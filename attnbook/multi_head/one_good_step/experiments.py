r"""The experiment of the chapter: what one step from zero writes, and what margin it leaves.

Margins of the paper's target are sums of a decoder part and an attention part. The start is $m$, the row of every
decoder per unit of its random sign; $m=\frac\zeta4u_\star$ is its signal alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.checks import at_least, containing, increasing
from attnbook.multi_head.data import Drawn, Mixture, draw, draw_patterns
from attnbook.multi_head.experiment_parts import slope
from attnbook.multi_head.on_mixture import MixtureCells

__all__ = ["StartMargin"]

CELL = ("share", "norm", "noise")
FORMS = ("corrected", "printed")  # of the softmax Jacobian at zero
JUDGED = 0.1  # noise over S^2 at which the sign of eq. (7) is judged
LARGE_NORMS = (2.0, 4.0, 8.0, 16.0)  # of the paper's example with noise of order S
UNIFORM_HEADS = (4, 1024, 10**6)  # for coefficients uniform on [-1, 1]
DRAWS = 20  # of these coefficients
FIRST_PHASES = ("first phase", *(f"first phase {k}" for k in range(1, 6)))  # the residual is averaged over them


@dataclass(frozen=True, kw_only=True)
class StartMargin(MixtureCells):
    r"""Lemma 2 after real first phases, and Proposition 2: its three properties, and eq. (7) with and without noise."""

    id = "multi_head.start_margin"
    summary = "Lemma 2 and Proposition 2: what one step writes; norms, outputs and margins at the start"
    needs = "float64"
    budget_seconds = 20
    smoke = {
        "n_samples": 100, "noises": (0.0, 0.1), "n_first": (100, 1000), "seeds": (0, 1), "chunk": 2,
    }  # fmt: skip
    axes = {"share": "shares", "norm": "pattern_norms", "noise": "noises", "n": "n_first"}
    labels = {"heads": UNIFORM_HEADS, "large_norm": LARGE_NORMS, "form": FORMS}
    falling = ("shares",)

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 12  # of a token
    shares: tuple[float, ...] = (0.4, 0.1)  # zeta; most claims use the first
    pattern_norms: tuple[float, ...] = (1.0, 2.0, 4.0)  # S
    noises: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.125)  # bound on noise along patterns over S^2, at most 1/8
    free_noise: float = 0.5  # norm of the noise orthogonal to all patterns
    n_samples: int = 2000  # over which the smallest margin is taken
    step_norm: float = 2.0  # S where a real first phase is taken, with the first share
    step_noise: float = 0.05  # bound on noise along patterns there
    n_first: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)  # its samples; the fewer are the first of the more
    failure: float = 0.05  # delta of the bounds

    def __post_init__(self) -> None:
        super().__post_init__()
        containing((0.0, JUDGED), noises=self.noises)
        containing((2.0,), pattern_norms=self.pattern_norms)
        increasing(1, count=2, n_first=self.n_first)  # for a slope
        at_least(1, n_samples=self.n_samples)

    @property
    def step_mixture(self) -> Mixture:
        """The data model in which a real first phase is taken."""
        return self.mixture(self.step_norm, self.shares[0], self.step_noise / self.step_norm**2)

    def grown(self, norm: float) -> tuple[Mixture, int]:
        """Return a setting of the paper's example: all noise in proportion to S, and n_1 to S^2 d."""
        mixture = self.mixture(norm, self.shares[0], 0.1 / norm)
        return replace(mixture, free_noise=norm / 4), round(4 * norm**2 * self.dimension)

    def of_cells(self, formula: Callable[[Mixture], float]) -> xr.DataArray:
        """Return a formula of the mixture at every cell."""
        return self.stated(CELL, lambda share, norm, noise: formula(self.mixture(norm, share, noise)))

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure margins in all cells, and the three properties after a real first phase."""

        def of_cell(share: float, norm: float, noise: float) -> Arrays:
            mixture = self.mixture(norm, share, noise)
            true, batch = truth(mixture, seeds, device), draw(mixture, self.n_samples, seeds, device=device)
            starts_at = {"zero_margin": 0 * true.signal, "margin": share / 4 * true.signal}
            return {name: (("seed",), true.margins(batch, m).amin(1).cpu().numpy()) for name, m in starts_at.items()}

        errors: Arrays = {"jacobian_error": (("form",), jacobian_errors(self.n_tokens))}
        found = self.grid(CELL, of_cell, progress=progress)
        return found | errors | self._real_step(seeds, device) | self._growth(seeds, device)

    def _real_step(self, seeds: tuple[int, ...], where: torch.device) -> Arrays:
        """Measure residual, head norms, outputs and margins after a real first phase of every size."""
        mixture = self.step_mixture
        true, batch = truth(mixture, seeds, where), draw(mixture, self.n_samples, seeds, device=where)
        part = mixture.relevant_fraction / 4 * true.signal[:, None]
        each = [self._directions(seeds, purpose, where) for purpose in FIRST_PHASES]
        m, (zero, pull) = each[0], true.parts(batch)
        residual, sizes = m - part, torch.stack([(one - part).norm(dim=2) for one in each])
        read = self.n_tokens * torch.einsum("bn,bnd,bsd->bsn", batch.labels, batch.tokens.mean(2), m)
        found = {
            "coefficient": torch.einsum("bsd,bd->bs", m, true.signal) / (2 * self.step_norm**2 * self.shares[0]),
            "residual": residual.norm(dim=2),
            "typical_residual": sizes.square().mean(0).sqrt(),
            "residual_half": (m - 2 * part).norm(dim=2),  # as if the text's zeta/2 were right
            "head_norm": self.n_tokens**0.5 * m.norm(dim=2),
            "output": read.abs().amax(2),  # largest, of one head
            "right": read.amin(2),  # smallest output times label, of one head with a plus sign
            "step_margin": (zero[:, None] + torch.einsum("bnd,bsd->bsn", pull, m)).amin(2),
            # what the residual takes off a sample's margin at most, for each unit of its norm
            "lost": -torch.einsum("bnd,bsd->bsn", pull, residual).amin(2) / residual.norm(dim=2),
        }
        attention, uniform = torch.einsum("bnd,bd->bn", pull, m[:, -1]), []
        for i, heads in itertools.product(range(len(seeds)), UNIFORM_HEADS):
            rng = stream(seeds[i], "uniform", heads)
            means = (float(np.abs(rng.uniform(-1, 1, heads)).mean()) for _ in range(DRAWS))
            uniform.append([float((zero[i] + mean * attention[i]).min()) for mean in means])
        return {name: (("seed", "n"), tensor.cpu().numpy()) for name, tensor in found.items()} | {
            "worst_drop": (("seed",), pull.norm(dim=2).amax(1).cpu().numpy()),  # by any residual of norm one
            "uniform_margin": (("seed", "heads", "draw"), np.reshape(uniform, (len(seeds), -1, DRAWS))),
        }

    def _directions(self, seeds: tuple[int, ...], purpose: str, where: torch.device) -> Tensor:
        """Return m after a real first phase of every size, ``(seeds, sizes, dimension)``."""
        first = draw(self.step_mixture, self.n_first[-1], seeds, purpose=purpose, device=where)
        each = [starts.first_phase_direction(first.tokens[:, :n], first.labels[:, :n]) for n in self.n_first]
        return torch.stack(each, 1)

    def _growth(self, seeds: tuple[int, ...], where: torch.device) -> Arrays:
        """Measure smallest margins above that of the linear model as patterns grow."""
        gain = []
        for mixture, n_first in map(self.grown, LARGE_NORMS):
            first = draw(mixture, n_first, seeds, purpose="growing first phase", device=where)
            batch = draw(mixture, min(self.n_samples, 500), seeds, purpose="growing", device=where)
            m = starts.first_phase_direction(first.tokens, first.labels)
            margin = truth(mixture, seeds, where).margins(batch, m).amin(1)
            gain.append(margin.cpu().numpy() - oracle.linear_margin(mixture))
        return {"gain": (("large_norm", "seed"), gain)}

    def over_n(self, formula: Callable[[Mixture, int], float]) -> xr.DataArray:
        """Return a formula of the mixture and the size of the first phase, at every size."""
        return self.stated(("n",), partial(formula, self.step_mixture))

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off what the step writes, the three properties, and margins over the stated bound and over ours."""
        bound = self.over_n(partial(theory.residual_bound, failure=self.failure))
        plateau = self.shares[0] * self.step_norm * 2**0.5 / 4  # norm of zeta/4 u_star
        of_step = {
            "MH-L2.2": {
                "coefficient": data.coefficient.isel(n=-1, drop=True),
                "left_by_half_over_plateau": data.residual_half.isel(n=-1, drop=True) / plateau,
            },
            "MH-L2.3": {
                "slope": slope(data.typical_residual, "n"), "implied_constant": highest(data.residual / bound),
                "rms_over_law": np.sqrt(((data.typical_residual / self.over_n(theory.residual_size)) ** 2).mean()),
            },
        }  # fmt: skip
        return of_step | self._properties(data) | self._margins(data)

    def _properties(self, data: xr.Dataset) -> dict[str, dict[str, Any]]:
        mixture, each = self.step_mixture, partial(xr.apply_ufunc, vectorize=True)
        p = self.over_n(theory.residual_size) / self.failure**0.5
        heads = partial(theory.head_norm_bound, mixture)
        output = partial(theory.output_bound, mixture, n_samples=self.n_samples, failure=self.failure)
        likely = data.output * max(theory.sign_quantile(h, self.failure) for h in (1, 4, 16, 64))
        free, uniform = oracle.first_phase_margin(mixture), data.uniform_margin
        spread = (uniform.max("draw") - uniform.min("draw")) / uniform.mean("draw")
        whole = free - theory.residual_price(mixture) * data.residual
        return {
            "MH-P2.1": {
                "largest_ratio": highest(data.head_norm / each(heads, data.residual)),
                "largest_ratio_ours": highest(data.head_norm / each(partial(heads, sharper=True), p)),
            },
            "MH-P2.2": {
                "largest_ratio": highest(likely / each(output, data.residual)),
                "largest_ratio_ours": highest(likely / each(partial(output, sharper=True), p)),
                "smallest_reading": lowest(data.right),
            },
            "MH-P2.3": {
                "smallest_over_half": lowest(data.step_margin / (free / 2)),
                "smallest_over_half_uniform": lowest(uniform.isel(heads=-1, drop=True) / (free / 2)),
                **{f"relative_spread_{h}": spread.sel(heads=h, drop=True) for h in (4, 1024)},
            },
            "MH-P2.6": {
                "bound": whole.isel(n=-1, drop=True), "margin": data.step_margin.isel(n=-1, drop=True),
            },
            "MH-P2.7": {"slope": slope(data.gain, "large_norm")},
        }  # fmt: skip

    def _margins(self, data: xr.Dataset) -> dict[str, dict[str, Any]]:
        stated, ours = self.of_cells(oracle.first_phase_margin), self.of_cells(theory.margin_bound)
        judged, noisy = {"share": self.shares[0], "norm": 2.0, "noise": JUDGED}, {"noise": data.noise > 0}
        mixture, error = self.step_mixture, abs(data.margin / stated - 1)
        price = theory.residual_price(mixture, sharper=True)
        after = theory.margin_bound(mixture) - price * data.residual
        return {
            "MH-B13.2": {f"relative_error_{form}": data.jacobian_error.sel(form=form, drop=True) for form in FORMS},
            "MH-P2.4": {"relative_error_signs": highest(error.sel(noise=0.0, drop=True))},
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
                "smallest_step_bound": lowest(after.isel(n=-1, drop=True)),
                "smallest_step_margin_minus_ours": lowest(data.step_margin - after),
                "drop_over_price": highest(np.maximum(data.lost.max("n"), data.worst_drop) / price),
                "price_over_stated": xr.DataArray(price / theory.residual_price(mixture)),
            },
        }  # fmt: skip


def jacobian_errors(n_tokens: int) -> list[float]:
    """Return the relative errors of the softmax Jacobian at zero, with and without one over the number of tokens."""
    true = torch.func.jacrev(lambda v: v.softmax(0))(torch.zeros(n_tokens, device="cpu", dtype=torch.float64))
    printed = torch.eye(n_tokens, device="cpu", dtype=torch.float64) - 1 / n_tokens
    return [float((form - true).norm() / true.norm()) for form in (printed / n_tokens, printed)]


class Truth(NamedTuple):
    """The signal and the target of some seeds, one member each."""

    signal: Tensor  # u_star = mu_+ - mu_-, (members, dimension)
    decoder: Tensor  # of the target, norm one, (members, tokens, dimension)
    key_query: Tensor  # of the target, norm one, (members, dimension, dimension)

    def parts(self, batch: Drawn) -> tuple[Tensor, Tensor]:
        r"""Return the decoder part of the margins, and the vectors whose product with $m$ is the attention part."""
        decoder = batch.labels * torch.einsum("bnd,bd->bn", batch.tokens.mean(2), self.decoder.sum(1))
        return decoder, starts.key_query_pull(batch.tokens, batch.labels, self.key_query)

    def margins(self, batch: Drawn, m: Tensor) -> Tensor:
        """Return the margin of every sample at one direction of each member."""
        decoder, pull = self.parts(batch)
        return decoder + torch.einsum("bnd,bd->bn", pull, m)


def truth(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> Truth:
    """Return signal and target of some seeds."""
    rows = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
        rows.append((oracle.value_direction(patterns), u / np.linalg.norm(u), w / np.linalg.norm(w)))
    return Truth(*(to_tensor(np.stack(part), device=where, dtype=torch.float64) for part in zip(*rows, strict=True)))
