r"""Eq. (7): the margin of the target at the start, without noise, with noise, and with a residual.

Without noise the formula is compared with gradients of whole networks. With noise, and with a residual, the smallest
margin over many samples is compared with eq. (7) and with this book's bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.experiments import noise_free, samples, start_cells, worst_noise
from attnbook.multi_head.experiments.start_cells import Settings

__all__ = ["Settings", "StartMargin", "run"]


@dataclass(frozen=True)
class StartMargin(Result):
    r"""Margins of the target at the start; *cells* are ``shares, norms, noises``.

    Attributes:
        noise_free_error: Relative error of eq. (7) with random signs and $\frac\zeta4$, over sizes, ``(seeds, sizes)``.
        uniform_error: The same for $\alpha$ uniform on $[-1,1]$ and $\frac\zeta2$, in expectation.
        jacobian_error: Relative errors of the two forms of the softmax Jacobian at zero: with the factor, without.
        margin: Smallest margin at $m=\frac\zeta4u_\star$, ``(seeds, *cells)``.
        zero_margin: Smallest margin of the same target at zero, ``(seeds, *cells)``.
        best: Largest smallest margin of any target of norm $\sqrt2$ at $m=\frac\zeta4u_\star$; NaN where none is
            positive; ``(seeds, *cells)``.
        best_zero: The same at zero.
        worst: Smallest margin that a search over all allowed noise found, at the last of ``noises``.
        counts: Samples in each bin of margin over the noise-free eq. (7), bins from -0.5 to 1.5, outliers in the outer
            ones, for the first seed: ``(2, *cells, bins)``, at zero and after the step.
        residual: Norm of $p$ after a real first phase, ``(seeds, first)``.
        step_margin: Smallest margin after it, ``(seeds, first)``.
        drop: Largest drop of a sample's margin through $p$, per unit of $\|p\|$, ``(seeds, first)``.
        worst_drop: The same for the worst $p$ of norm one, ``(seeds,)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "multi_head.start_margin"
    settings_type: ClassVar[type] = Settings

    noise_free_error: Float[np.ndarray, "seeds sizes"]
    uniform_error: Float[np.ndarray, "seeds sizes"]
    jacobian_error: Float[np.ndarray, "seeds 2"]
    margin: Float[np.ndarray, "seeds shares norms noises"]
    zero_margin: Float[np.ndarray, "seeds shares norms noises"]
    best: Float[np.ndarray, "seeds shares norms noises"]
    best_zero: Float[np.ndarray, "seeds shares norms noises"]
    worst: Float[np.ndarray, "seeds shares norms"]
    counts: Float[np.ndarray, "2 shares norms noises bins"]
    residual: Float[np.ndarray, "seeds first"]
    step_margin: Float[np.ndarray, "seeds first"]
    drop: Float[np.ndarray, "seeds first"]
    worst_drop: Float[np.ndarray, " seeds"]

    def of_cells(self, name: str) -> Float[np.ndarray, "shares norms noises"]:
        """Return a formula at every cell, without residual: ``stated`` is eq. (7), ``ours`` or ``linear``."""
        formulas = {
            "stated": oracle.first_phase_margin,
            "ours": theory.margin_bound,
            "linear": oracle.linear_margin,
        }
        values = np.empty(self.settings.shape)
        for index in np.ndindex(values.shape):
            values[index] = formulas[name](self.settings.mixture(*index))
        return values

    def unit(self, share: int, norm: int) -> float:
        """Return eq. (7) without noise at a share and a norm, by their index: the unit of ``counts``."""
        return oracle.first_phase_margin(
            replace(self.settings.mixture(share, norm, 0), label_noise=0.0, other_noise=0.0)
        )

    @property
    def stated_step(self) -> Float[np.ndarray, "seeds first"]:
        """The whole of eq. (7), with the measured residual."""
        mixture = self.settings.step_mixture
        return oracle.first_phase_margin(mixture) - theory.stated_residual_price(mixture) * self.residual

    @property
    def our_step(self) -> Float[np.ndarray, "seeds first"]:
        """This book's bound, with the measured residual."""
        mixture = self.settings.step_mixture
        return theory.margin_bound(mixture) - theory.residual_price(mixture) * self.residual

    @property
    def required(self) -> dict[tuple[str, str], float]:
        r"""First-phase samples from which a margin bound is positive, by (size of the residual, margin bound).

        Sizes: ``lemma`` and ``likely`` (Chebyshev's inequality) hold with probability $1-\delta$; ``exact`` is typical.
        """
        mixture, s = self.settings.step_mixture, self.settings
        typical = theory.residual_size(mixture, 1)
        spreads = {
            "lemma": theory.residual_bound(mixture, 1, failure=s.failure),
            "likely": typical / s.failure**0.5,
            "exact": typical,
        }
        bounds = {
            "stated": (theory.stated_residual_price(mixture), oracle.first_phase_margin(mixture)),
            "ours": (theory.residual_price(mixture), theory.margin_bound(mixture)),
        }
        return {
            (size, bound): theory.samples_required(spread=spread, price=price, margin=margin)
            for size, spread in spreads.items()
            for bound, (price, margin) in bounds.items()
        }

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for eq. (7), by claim id."""
        norms, judged = self.settings.pattern_norms, self.settings.noises.index(0.1)
        two = norms.index(2.0)
        ours, stated, required = self.of_cells("ours"), self.of_cells("stated"), self.required
        gains = self.best[:, 0, :, 0] / self.best_zero[:, 0, :, 0]
        price = theory.residual_price(self.settings.step_mixture)
        stated_price = theory.stated_residual_price(self.settings.step_mixture)
        drop = extremes_over_seeds(largest_drop_per_residual=np.maximum(self.drop.max(1), self.worst_drop))
        sharper = extremes_over_seeds(smallest_margin_minus_ours=self.margin - ours)
        return {
            "MH-P2.4": extremes_over_seeds(relative_error=self.noise_free_error),
            "MH-P2.4-uniform": extremes_over_seeds(relative_error_uniform=self.uniform_error),
            "MH-B13.2": over_seeds(
                relative_error_corrected=self.jacobian_error[:, 0], relative_error_printed=self.jacobian_error[:, 1]
            ),
            "MH-P2.5": extremes_over_seeds(smallest_margin_minus_bound=self.margin - stated),
            "MH-P2.5-negative": _with(
                extremes_over_seeds(smallest_margin=self.margin[:, 0, two, judged]), bound=stated[0, two, judged]
            ),
            "MH-P2.5-ours": _with(
                sharper, smallest_gain=float((ours - stated).min()), smallest_ours=float(ours[0].min())
            ),
            "MH-P2.5-worst": _with(
                extremes_over_seeds(
                    smallest_worst_minus_ours=self.worst - ours[..., -1],
                    smallest_margin_minus_worst=self.margin[..., -1] - self.worst,
                    worst_norm_1=self.worst[:, -1, norms.index(1.0)],
                    smallest_worst_norm_4=self.worst[:, -1, norms.index(4.0)],
                ),
                ours_norm_4=float(ours[-1, norms.index(4.0), -1]),
            ),
            "MH-P2.3-zero": over_seeds(gain_norm_1=gains[:, norms.index(1.0)], gain_norm_4=gains[:, norms.index(4.0)]),
            "MH-P2.6": over_seeds(bound=self.stated_step[:, -1], margin=self.step_margin[:, -1]),
            "MH-P2.6-samples": Measurement({"required_first_phase_samples": required["lemma", "stated"]}),
            "MH-P2.6-samples-exact": Measurement(
                {
                    "required_stated": required["exact", "stated"],
                    "required_ours": required["exact", "ours"],
                    "required_ours_likely": required["likely", "ours"],
                }
            ),
            "MH-P2.6-sensitivity": _with(drop, sharper_constant=price, stated_constant=stated_price),
            "MH-P2.6-ours": extremes_over_seeds(
                smallest_bound=self.our_step[:, -1], smallest_margin_minus_bound=self.step_margin - self.our_step
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> StartMargin:
    """Measure margins at the start.

    Args:
        settings: Sizes and seeds.
        device: Where to compute, in float64; default cuda where there is one, else the CPU.
        progress: Told (cells done, cells in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        cells = list(np.ndindex(settings.shape))
        found = []
        for number, cell in enumerate(cells, 1):
            found.append(start_cells.measure_cell(settings, cell, seeds, where))
            if inner:
                inner(number, len(cells))
        stacked = {
            name: np.stack([one[name] for one in found], axis=1).reshape(len(seeds), *settings.shape, *tail)
            for name, tail in {**dict.fromkeys(start_cells.CELLS, ()), "counts": (2, settings.bins)}.items()
        }
        worst = [
            worst_noise.smallest_margin(settings.mixture(i, j, -1), seeds, where)
            for i, j in np.ndindex(settings.shape[:2])
        ]
        stacked["worst"] = np.stack(worst, axis=1).reshape(len(seeds), *settings.shape[:2])
        return {**stacked, **noise_free.errors(seeds, where), **start_cells.measure_step(settings, seeds, where)}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    arrays["counts"] = np.moveaxis(arrays["counts"][0], 3, 0)
    return StartMargin(settings=settings, provenance=clock.provenance(where), **arrays)


def _with(found: Measurement, **values: float) -> Measurement:
    """Add numbers that no seed enters."""
    return Measurement({**found.values, **values}, found.spread, found.n_seeds)
