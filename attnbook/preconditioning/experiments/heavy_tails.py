r"""The heavy-tail threshold: how fast the bias of the loss falls when the signal is strong, in one dimension.

Outside the assumptions of the paper's theorem. The bias is computed exactly, by quadrature, at every number of samples;
a simulation at the smallest number checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import resumable
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.theory.attention_output import scalar_bias
from attnbook.preconditioning.theory.scaling_law import heavy_tail_exponent, scalar_bias_coefficient

__all__ = ["HeavyTails", "Settings", "run"]

# What the claims name: signals, and the numbers of samples that slopes are fitted to.
LIGHT, NEAR, HEAVY = (0.1, 0.25), (0.4, 0.5), (0.7, 1.0, 1.5)
FITTED = (2**7, 2**12)
# Signals that nobody had looked at when the claims on many samples were written: below and above the threshold.
BELOW, ABOVE = 0.45, (0.55, 0.75, 1.15, 2.0)


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        signals: Largest singular values $s_1$, increasing; the claims name twelve of them.
        first: Smallest number of samples, as a power of two; at most 7.
        last: Largest one; at least 12.
        per_unit: Queries per unit of $x$ in the sum over queries.
        simulated: Seeds of the simulations, at the smallest number of samples.
        draws: Draws of a whole batch of keys and one query, for each seed and signal.
    """

    signals: tuple[float, ...] = (
        0.1, 0.2, 0.25, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.75, 0.85, 1.0, 1.15, 1.5, 2.0,
    )  # fmt: skip
    first: int = 7
    last: int = 32
    per_unit: int = 5
    simulated: tuple[int, ...] = (0, 1, 2, 3, 4)
    draws: int = 1000

    def __post_init__(self) -> None:
        needed = {*LIGHT, *NEAR, *HEAVY, BELOW, *ABOVE}
        if needed - set(self.signals) or list(self.signals) != sorted(set(self.signals)):
            raise ValueError(f"signals: expected increasing numbers, {sorted(needed)} among them, got {self.signals}")
        if not 2 <= self.first <= 7 or self.last < 12:
            raise ValueError(f"first, last: expected 2 to 7, and at least 12, got {self.first} and {self.last}")
        if self.per_unit < 1:
            raise ValueError(f"per_unit: expected at least one, got {self.per_unit}")
        if not self.simulated or self.draws < 2:
            raise ValueError(
                f"simulated, draws: expected at least one seed and two draws, got {self.simulated}, {self.draws}"
            )

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        needed = sorted({*LIGHT, *NEAR, *HEAVY, BELOW, *ABOVE})
        return cls(signals=tuple(needed), last=12, simulated=(0,), draws=20)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples and draws; the paper says nothing of this regime."""
        return cls(last=40, per_unit=20, draws=50_000)

    @property
    def n_samples(self) -> tuple[int, ...]:
        """Every power of two that slopes are fitted to, and every other one beyond."""
        fitted = range(self.first, FITTED[1].bit_length())
        return tuple(2**k for k in (*fitted, *range(fitted.stop + 1, self.last + 1, 2)))


@dataclass(frozen=True)
class HeavyTails(Result):
    r"""The bias $\mathbb EL_n-L^*$ at the balanced optimum in one dimension.

    Attributes:
        bias: Exact, ``(signals, counts)``.
        simulated: Means over draws at the smallest number of samples, ``(seeds, signals)``.
    """

    experiment: ClassVar[str] = "preconditioning.heavy_tails"
    settings_type: ClassVar[type] = Settings

    bias: Float[np.ndarray, "signals counts"]
    simulated: Float[np.ndarray, "seeds signals"]

    @property
    def n_samples(self) -> Float[np.ndarray, " counts"]:
        """Numbers of samples, as floating point numbers."""
        return np.array(self.settings.n_samples, dtype=np.float64)

    def slopes(self) -> Float[np.ndarray, "signals pairs"]:
        """Return the slope of the bias between neighbouring numbers of samples, on log axes."""
        return np.diff(np.log(self.bias), axis=1) / np.diff(np.log(self.n_samples))

    def fitted(self) -> Float[np.ndarray, " signals"]:
        """Return the slope fitted to the range of samples that the claims name."""
        chosen = (self.n_samples >= FITTED[0]) & (self.n_samples <= FITTED[1])
        return np.polyfit(np.log(self.n_samples[chosen]), np.log(self.bias[:, chosen]).T, 1)[0]

    def measurements(self) -> dict[str, Measurement]:
        """Return the slopes, by claim id; exact, so no seed enters."""
        slope = dict(zip(self.settings.signals, self.fitted(), strict=True))
        errors = {s: abs(slope[s] + float(heavy_tail_exponent(s))) for s in (*LIGHT, *HEAVY)}
        weakest, at = LIGHT[0], self.settings.n_samples.index(FITTED[1])
        scaled = FITTED[1] * self.bias[self.settings.signals.index(weakest), at]
        near = [slope[s] for s in NEAR]
        far = dict(zip(self.settings.signals, self.slopes()[:, -1], strict=True))
        errors_far = [abs(far[s] + float(heavy_tail_exponent(s))) for s in ABOVE]
        return {
            "PC-H1": Measurement({"largest_slope_error": float(max(errors[s] for s in LIGHT))}),
            "PC-H1-heavy": Measurement({"largest_slope_error": float(max(errors[s] for s in HEAVY))}),
            "PC-H1-transition": Measurement({"smallest_slope": float(min(near)), "largest_slope": float(max(near))}),
            "PC-H1-transition-flat": Measurement({"smallest_slope": float(min(near))}),
            "PC-H1-heavy-far": Measurement({"largest_slope_error": float(max(errors_far))}),
            "PC-H1-transition-far": Measurement({"slope_small": float(slope[BELOW]), "slope_large": float(far[BELOW])}),
            "PC-H1-constant": Measurement(
                {"scaled_bias": float(scaled), "coefficient": float(scalar_bias_coefficient(weakest))}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> HeavyTails:
    """Compute the bias at every signal and number of samples, and simulate it at the smallest number.

    Args:
        settings: Signals and numbers of samples.
        device: Named in the provenance; the work is small, in float64 and on the CPU.
        progress: Told (signals done, signals in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)

    def compute(part: str, inner: Progress | None) -> dict[str, np.ndarray]:
        signal = settings.signals[int(part.removeprefix("signal-"))]
        with runtime.threads(1):
            found = {
                "bias": scalar_bias(signal, settings.n_samples, per_unit=settings.per_unit),
                "simulated": np.array([_simulated(signal, settings, seed) for seed in settings.simulated]),
            }
        if inner:
            inner(1, 1)
        return found

    names = [f"signal-{number}" for number in range(len(settings.signals))]
    parts = resumable(names, compute, settings=settings, clock=clock, workdir=workdir, progress=progress)
    return HeavyTails(
        settings=settings,
        provenance=clock.provenance(where),
        bias=np.stack([parts[name]["bias"] for name in names]),
        simulated=np.stack([parts[name]["simulated"] for name in names], axis=1),
    )


def _simulated(signal: float, settings: Settings, seed: int) -> float:
    """The mean of the bias over draws of keys, the query among them."""
    keys = stream(seed, "heavy tails", f"{signal:g}").standard_normal((settings.draws, settings.n_samples[0]))
    query = keys[:, :1]
    scores = signal**0.5 * query * keys
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    output = (weights * keys).sum(axis=1) / weights.sum(axis=1)
    return float(signal / 2 * np.mean((output - signal**0.5 * query[:, 0]) ** 2))
