r"""How fast does the direction settle, and how does the norm grow? Lemmas 29 and 30 far out, and beyond.

Runs start in the cone and take scale-free steps of equal length in the weights. The time of plain steps that would have
led there is added up as a logarithm; soon no float could hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import rate_bounds
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.experiments.starting import started

__all__ = ["Rates", "Settings", "run"]

# Exponents that the claims of every scale name, and those of the longer run.
NEEDED = (1.5, 2.0, 3.0)
ALL = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
# Relative norms from which bounds are compared and slopes are fitted, and the norm is held against the log of time.
BEYOND, GROWING = 30.0, 20.0


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents, increasing.
        divergence: Divergence of the starts.
        radius: Relative norm of the starts.
        step: How far a step moves the weights, the same for every exponent.
        steps: Steps of each run.
        records: How many steps are recorded, about.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = NEEDED
    divergence: float = 0.01
    radius: float = 5.0
    step: float = 0.25
    steps: int = 3600
    records: int = 60
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if set(NEEDED) - set(self.ps) or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {NEEDED} among them, got {self.ps}")
        if not self.step > 0 or not self.divergence > 0:
            raise ValueError(f"step, divergence: expected positive numbers, got {self.step} and {self.divergence}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(radius=35.0, step=1.0, steps=12, records=8, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, more exponents, more and shorter steps; the paper has proofs in their place."""
        return cls(ps=(1.1, *ALL), step=0.1, steps=40_000, records=120, seeds=tuple(range(20)), chunk=10)

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which norms, times and divergences are recorded."""
        return log_spaced(self.steps, self.records)[1:]


@dataclass(frozen=True)
class Rates(Result):
    r"""Divergence, norm and time along the runs, ``(seeds, ps, records)`` each.

    Attributes:
        steps: Steps at which they were recorded, ``(records,)``.
        divergence: $D_\psi(\bar W_{mm},\bar W(k))$ to the solution of the best tokens.
        relative_norm: $\|W(k)\|_{p,p}/\|W_{mm}\|_{p,p}$.
        log_time: $\log t_k$ with $t_k=\sum_{j<k}\eta_j$.
        target_norm: $\|W_{mm}\|_{p,p}$, ``(seeds, ps)``.
    """

    experiment: ClassVar[str] = "mirror_descent.rates"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    divergence: Float[np.ndarray, "seeds ps records"]
    relative_norm: Float[np.ndarray, "seeds ps records"]
    log_time: Float[np.ndarray, "seeds ps records"]
    target_norm: Float[np.ndarray, "seeds ps"]

    def of(self, p: float) -> int:
        """Return the place of an exponent."""
        return self.settings.ps.index(p)

    def slopes(self, p: float, beyond: float = BEYOND) -> Float[np.ndarray, " seeds"]:
        """Return the log-log slope of the divergence against the norm beyond a relative norm."""
        at = self.of(p)
        pairs = zip(self.relative_norm[:, at], self.divergence[:, at], strict=True)
        return np.array([rate_bounds.log_log_slope(norm, far, beyond=beyond)[0] for norm, far in pairs])

    def growth(self, p: float) -> Float[np.ndarray, " seeds"]:
        r"""Return the slope of the norm against $\log t$ far out, in units of the norm of the max-margin solution."""
        found = []
        for norm, time in zip(self.relative_norm[:, self.of(p)], self.log_time[:, self.of(p)], strict=True):
            far = norm > GROWING
            found.append(np.polyfit(time[far], norm[far], 1)[0])
        return np.array(found)

    def divergence_at(
        self, p: float, relative_norms: Float[np.ndarray, " points"]
    ) -> Float[np.ndarray, "seeds points"]:
        """Return the divergence of each seed where it passes given relative norms, interpolated on log axes."""
        at, wanted = self.of(p), np.log(relative_norms)
        pairs = zip(np.log(self.relative_norm[:, at]), np.log(self.divergence[:, at]), strict=True)
        return np.exp([np.interp(wanted, norm, far) for norm, far in pairs])

    def divergence_after(self, p: float, log_time: float) -> Float[np.ndarray, " seeds"]:
        """Return the divergence of each seed at a log of the time, interpolated along the records."""
        at = self.of(p)
        pairs = zip(self.log_time[:, at, 1:], np.log(self.divergence[:, at, 1:]), strict=True)
        return np.exp([np.interp(log_time, time, far) for time, far in pairs])

    def reach(self, p: float) -> float:
        """Return the relative norm that every seed reaches."""
        return float(self.relative_norm[:, self.of(p), -1].min())

    def ratio_at(self, p: float, relative_norm: float = GROWING) -> Float[np.ndarray, " seeds"]:
        r"""Return $\|W\|/(\|W_{mm}\|\log t)$ where the run passes a relative norm."""
        pairs = zip(self.relative_norm[:, self.of(p)], self.log_time[:, self.of(p)], strict=True)
        return np.array([relative_norm / np.interp(relative_norm, norm, time) for norm, time in pairs])

    def correction(self, p: float) -> Float[np.ndarray, " seeds"]:
        r"""Return the slope of $\rho-\log t$ against $\log\rho$ far out, $\rho$ the relative norm; 2 - p on the ray."""
        found = []
        for norm, time in zip(self.relative_norm[:, self.of(p)], self.log_time[:, self.of(p)], strict=True):
            far = norm > GROWING
            found.append(np.polyfit(np.log(norm[far]), (norm - time)[far], 1)[0])
        return np.array(found)

    def late_over_early(self, p: float, *, in_time: bool = False) -> Float[np.ndarray, " seeds"]:
        """Return divergence over bound at the end, over the same at relative norm 30.

        Args:
            p: One of the exponents.
            in_time: Whether the bound takes the log of the time instead of the norm; default the norm.

        Returns:
            One number per seed; a bound holds when it does not grow.
        """
        at, found = self.of(p), []
        for seed, norm in enumerate(self.relative_norm[:, at]):
            far = norm >= BEYOND
            argument = self.log_time[seed, at, far] if in_time else norm[far] * self.target_norm[seed, at]
            ratio = self.divergence[seed, at, far] / rate_bounds.bound(argument, p)
            found.append(ratio[-1] / ratio[0])
        return np.array(found)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        found = self._bounds()
        for p in (1.5, 1.75, 2.0):
            if p in self.settings.ps:
                found[f"MD-rate+-p{p:g}"] = over_seeds(slope=self.slopes(p))
        asked = [p for p in self.settings.ps if p >= 1.25]
        found["MD-L30+"] = _worst_median(np.stack([self.growth(p) - 1 for p in asked], axis=1))
        found["MD-L30+-correction-to3"] = self._correction([p for p in asked if p <= 3])
        if set(ALL) <= set(self.settings.ps):
            found |= self._more_exponents()
        return found

    def _bounds(self) -> dict[str, Measurement]:
        """Lemma 29 and the main theorem, the worst exponent of each case."""
        cases = {
            "below2": [p for p in self.settings.ps if p < 2],
            "at2": [2.0],
            "above2": [p for p in self.settings.ps if p > 2],
        }
        found = {}
        for case, ps in cases.items():
            for claim, in_time in (("MD-L29", False), ("MD-rate-k", True)):
                worst = np.max([self.late_over_early(p, in_time=in_time) for p in ps], axis=0)
                found[f"{claim}-{case}"] = extremes_over_seeds(max_bound_ratio_late_to_early=worst)
        return found

    def _correction(self, ps: list[float]) -> Measurement:
        """How far the slopes of the correction are from 2 - p."""
        return _worst_median(np.stack([self.correction(p) + p - 2 for p in ps], axis=1))

    def _more_exponents(self) -> dict[str, Measurement]:
        slopes = {f"slope_p{p:g}".replace(".", "_"): self.slopes(p) for p in ALL}
        some = {
            "MD-rate-k-alternative": ("slope_p1_25", "slope_p1_5", "slope_p1_75"),
            "MD-rate+-above2": ("slope_p2_5", "slope_p3", "slope_p4"),
            "MD-rate+-order": ("slope_p1_25", "slope_p1_5", "slope_p1_75", "slope_p2"),
        }
        found = {claim: over_seeds(**{name: slopes[name] for name in names}) for claim, names in some.items()}
        found["MD-L30+-correction"] = self._correction(list(ALL))
        found["MD-L30+-correction-p4"] = over_seeds(slope=self.correction(4.0))
        return found | {"MD-L30+-ratio": over_seeds(ratio_p1_25=self.ratio_at(1.25), ratio_p4=self.ratio_at(4.0))}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Rates:
    """Train every seed with every exponent from a start in the cone, far out, with the time kept as a logarithm.

    Args:
        settings: Sizes, exponents, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a run diverges.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        runs = started(settings.ps, seeds, [(settings.divergence, settings.radius)])
        history = descend(
            runs.problems,
            runs.ps,
            steps=settings.steps,
            step_size=(settings.step * (runs.ps - 1)).tolist(),
            normalized=True,
            start=runs.start,
            record_at=settings.record_at,
            log_time=True,
            device=where,
            progress=inner,
        )
        path = history.records["key_query"]
        found = {
            "divergence": runs.divergence(path),
            "relative_norm": runs.relative_norm(path),
            "log_time": history.records["log_time"].T,
            "target_norm": runs.norm,
        }
        shape = (len(settings.ps), len(seeds))
        return {name: np.swapaxes(v.reshape(*shape, *v.shape[1:]), 0, 1) for name, v in found.items()}

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    steps = np.array(settings.record_at, dtype=np.float64)
    return Rates(settings=settings, provenance=clock.provenance(where), steps=steps, **concatenate(parts))


def _worst_median(deviations: Float[np.ndarray, "seeds ps"]) -> Measurement:
    """The largest median over seeds, over the exponents, with the range over seeds of each seed's own largest."""
    per_seed = np.abs(deviations).max(axis=1)
    return Measurement(
        {"max_slope_deviation": float(np.abs(np.median(deviations, axis=0)).max())},
        {"max_slope_deviation": (float(per_seed.min()), float(per_seed.max()))},
        len(deviations),
    )
