r"""One step size for matrix and head: the ratio $\kappa$ of their relative norms never settles.

The head's gradient shrinks like $e^{-r}$ with its relative norm $r$, the matrix's like $r\,e^{-r}e^{-\rho}$. With one
step size for both the matrix therefore falls behind: $\rho$ grows like $p\log r$. Time, the sum of the step sizes, is
kept as a logarithm. The same problems with separate steps are kept beside.
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
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.data import draw_problems, joined
from attnbook.mirror_descent.experiments.joint_comparing import compared_jointly
from attnbook.mirror_descent.joint import Steps, descend_jointly
from attnbook.mirror_descent.joint_bounds import common_step_growth

__all__ = ["PROTOCOLS", "JointOneStepSize", "Settings", "run"]

PROTOCOLS: tuple[Steps, ...] = ("common", "separate")
COMMON, SEPARATE = 0, 1
# Logs of time at which the ratio is read, and the exponent of the claim that names none.
EARLY, MIDDLE, LATE = 5.0, 20.0, 100.0
DESCENT = 2.0
NEEDED = (1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents, increasing.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token; at least as many as samples.
        step_size: Step size of the scale-free steps; with one step size for both blocks, of the faster block.
        steps: Steps of the runs with one step size.
        separate_steps: Steps of the runs with separate ones.
        records: How many steps are recorded, about.
        seeds: One problem per seed.
        chunk: Seeds trained together as one program.
    """

    ps: tuple[float, ...] = NEEDED
    n_samples: int = 5
    n_tokens: int = 4
    dimension: int = 12
    step_size: float = 0.1
    steps: int = 3000
    separate_steps: int = 1200
    records: int = 12
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if set(NEEDED) - set(self.ps) or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {NEEDED} among them, got {self.ps}")
        if self.n_samples > self.dimension:
            raise ValueError(f"dimension: expected at least n_samples = {self.n_samples}, got {self.dimension}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=2, n_tokens=3, dimension=5, step_size=2.0, steps=60, separate_steps=30, records=4,
                   seeds=(0, 1), chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, exponents and steps; the paper has no such experiment that we know of."""
        return cls(ps=(1.25, 1.5, 1.75, 2.0, 3.0), steps=20_000, separate_steps=6000, records=24,
                   seeds=tuple(range(20)), chunk=10)  # fmt: skip

    def record_at(self, protocol: Steps) -> tuple[int, ...]:
        """Return the steps at which runs of a protocol are recorded."""
        steps = self.steps if protocol == "common" else self.separate_steps
        return tuple(s for s in log_spaced(steps, 2 * self.records, also=(10,)) if s >= 10)[-self.records :]


@dataclass(frozen=True)
class JointOneStepSize(Result):
    r"""What is known along the runs, ``(seeds, ps, records)`` each; names ending in ``_separate`` for separate steps.

    Attributes:
        log_time: Log of the sum of the step sizes.
        kappa: The self-consistent ratio $\kappa=r/\rho$.
        head_norm: $r=\|v\|_p/\|v_{mm}\|_p$.
        relative_norm: $\rho=\|W\|_{p,p}/\|W_\kappa\|_{p,p}$.
        cosine_head: Cosine of $v$ and $v_{mm}$.
        cosine_plain: Cosine of $W$ and the plain attention SVM of the tokens attended then.
        cosine_corrected: Cosine of $W$ and $W_\kappa$.
        cosine_limit: Cosine of $W$ and the solution for infinite $\kappa$.
        all_support: Whether every sample has head margin one.
        kappa_separate: As above.
        head_norm_separate: As above.
        relative_norm_separate: As above.
        cosine_corrected_separate: As above.
    """

    experiment: ClassVar[str] = "mirror_descent.joint_one_step_size"
    settings_type: ClassVar[type] = Settings

    log_time: Float[np.ndarray, "seeds ps records"]
    kappa: Float[np.ndarray, "seeds ps records"]
    head_norm: Float[np.ndarray, "seeds ps records"]
    relative_norm: Float[np.ndarray, "seeds ps records"]
    cosine_head: Float[np.ndarray, "seeds ps records"]
    cosine_plain: Float[np.ndarray, "seeds ps records"]
    cosine_corrected: Float[np.ndarray, "seeds ps records"]
    cosine_limit: Float[np.ndarray, "seeds ps records"]
    all_support: Float[np.ndarray, "seeds ps records"]
    kappa_separate: Float[np.ndarray, "seeds ps others"]
    head_norm_separate: Float[np.ndarray, "seeds ps others"]
    relative_norm_separate: Float[np.ndarray, "seeds ps others"]
    cosine_corrected_separate: Float[np.ndarray, "seeds ps others"]

    def of(self, p: float) -> int:
        """Return the place of an exponent."""
        return self.settings.ps.index(p)

    def at_log_time(self, values: Float[np.ndarray, "seeds ps records"], when: float) -> Float[np.ndarray, "seeds ps"]:
        """Return values where the runs pass a log of time, interpolated."""
        flat = zip(self.log_time.reshape(-1, values.shape[2]), values.reshape(-1, values.shape[2]), strict=True)
        return np.array([np.interp(when, time, own) for time, own in flat]).reshape(values.shape[:2])

    def growth(self) -> Float[np.ndarray, "seeds ps"]:
        r"""Return the slope of $\rho$ against $\log r$ over the last half of the records, over that of the formula."""
        found, far = np.empty(self.kappa.shape[:2]), slice(self.kappa.shape[2] // 2, None)
        for (seed, at), _ in np.ndenumerate(found):
            norm = self.relative_norm[seed, at, far]
            slope = np.polyfit(np.log(self.head_norm[seed, at, far]), norm, 1)[0]
            found[seed, at] = slope / common_step_growth(norm, self.settings.ps[at]).mean()
        return found

    def distance_ratio(self) -> Float[np.ndarray, "seeds ps"]:
        r"""Return $1-\cos$ to $W_\kappa$ at the end over that of separate steps at the same $\rho$."""
        found = np.empty(self.kappa.shape[:2])
        for (seed, at), _ in np.ndenumerate(found):
            own = 1 - self.cosine_corrected[seed, at, -1]
            norms = np.log(self.relative_norm_separate[seed, at])
            other = np.log(1 - self.cosine_corrected_separate[seed, at])
            order = np.argsort(norms)
            found[seed, at] = own / np.exp(
                np.interp(np.log(self.relative_norm[seed, at, -1]), norms[order], other[order])
            )
        return found

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        early, middle, late = (self.at_log_time(self.kappa, when) for when in (EARLY, MIDDLE, LATE))
        worst, descent = int(np.argmin(np.median(late, axis=0) / np.median(middle, axis=0))), self.of(DESCENT)
        judged = [at for at, p in enumerate(self.settings.ps) if p in NEEDED]
        growth = self.growth()[:, judged]
        deviation = np.abs(growth - 1)
        ratio = self.distance_ratio()[:, judged]
        off = self.all_support[:, :, -1] == 0
        nearer = (self.cosine_limit > self.cosine_plain)[:, :, -1]
        return {
            "MD-joint+-kappa": over_seeds(kappa_early=early[:, descent], kappa_late=late[:, descent]),
            "MD-joint+-kappa-all": over_seeds(kappa_middle=middle[:, worst], kappa_late=late[:, worst]),
            "MD-joint+-growth": Measurement(
                {"max_deviation": float(np.abs(np.median(growth, axis=0) - 1).max())},
                {"max_deviation": (float(deviation.max(axis=1).min()), float(deviation.max(axis=1).max()))},
                len(growth),
            ),
            "MD-joint+-far": over_seeds(
                worst_cosine=self.at_log_time(self.cosine_corrected, LATE)[:, judged].min(axis=1),
                relative_norm=np.median(self.at_log_time(self.relative_norm, LATE)[:, judged], axis=1),
            ),
            "MD-joint+-same-distance": Measurement(
                {
                    "ratio": float(np.median(np.median(ratio, axis=1))),
                    "share_within_two": float(((ratio > 0.5) & (ratio < 2)).mean()),
                },
                {"ratio": (float(ratio.min()), float(ratio.max()))},
                len(ratio),
            ),
            "MD-joint+-limit": Measurement(
                {"share_nearer_to_limit": float(nearer[off].mean()) if off.any() else 0.0, "runs": float(off.sum())},
                n_seeds=len(off),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> JointOneStepSize:
    """Train matrix and head with one step size, far out, and with separate ones; compare with the targets on the way.

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
        found = _follow(settings, seeds, "common", where, inner)
        beside = _follow(settings, seeds, "separate", where, None)
        again = ("kappa", "head_norm", "relative_norm", "cosine_corrected")
        names = ("log_time", "cosine_head", "cosine_plain", "cosine_limit", "all_support", *again)
        return {name: found[name] for name in names} | {f"{name}_separate": beside[name] for name in again}

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return JointOneStepSize(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _follow(
    settings: Settings, seeds: tuple[int, ...], protocol: Steps, device: torch.device, progress: Progress | None
) -> dict[str, Float[np.ndarray, "seeds ps records"]]:
    one = draw_problems(seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension)
    problems, ps = joined([one] * len(settings.ps)), np.repeat(settings.ps, len(seeds))
    record_at = settings.record_at(protocol)
    history = descend_jointly(
        problems,
        ps,
        steps=record_at[-1],
        step_size=settings.step_size,
        protocol=protocol,
        record_at=record_at,
        device=device,
        progress=progress,
    )
    with runtime.threads(1):
        found = compared_jointly(history.records["key_query"], history.records["decoder"], problems, ps)
    found["log_time"] = history.records["log_time"].T
    shape = (len(settings.ps), len(seeds), -1)
    return {name: np.swapaxes(values.reshape(shape), 0, 1) for name, values in found.items()}
