r"""Which step sizes work? From a fraction of $1/(m\lambda_{\max}(H^*))$ to several times the limit of linear theory.

This book's experiment; the step size of Theorem 4.2 is computed for the same networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, Run, over_runs, place, train
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.lazy_bounds import step_size_of_theorem
from attnbook.softmax_ntk.ntk import ntk_gram

__all__ = ["Settings", "StepSize", "run"]

SMOOTH: tuple[Activation, ...] = ("softmax", "exp")
# What is kept of every run, one number each.
KEPT = ("steps", "reached", "diverged", "monotone", "final_sharpness")


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        fractions: Step sizes, in units of $1/(m\lambda_{\max}(H^*))$; linear theory allows less than 2.
        usable: The largest of them that the claim calls usable.
        beyond: The one just beyond the limit that the claim on the catapult speaks of.
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        width: Number of neurons.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        curve_fractions: Step sizes whose loss curves are kept, some of ``fractions``.
        curve_steps: Steps of the curves.
        seeds: Seeds of data and weights; others than those of the trial in which the claim on the catapult was formed.
        chunk: Seeds trained together.
    """

    fractions: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 1.9, 2.2, 2.6, 3.0, 4.0, 6.0, 10.0)
    usable: float = 1.9
    beyond: float = 2.2
    n_samples: int = 16
    n_inputs: int = 16
    n_outputs: int = 2
    width: int = 512
    target: float = 1e-3
    max_steps: int = 600
    curve_fractions: tuple[float, ...] = (1.0, 1.9, 2.2, 4.0)
    curve_steps: int = 100
    seeds: tuple[int, ...] = tuple(range(10, 20))
    chunk: int = 10

    def __post_init__(self) -> None:
        for name, wanted in {"usable": (self.usable,), "beyond": (self.beyond,)}.items():
            if not set(wanted) <= set(self.fractions):
                raise ValueError(f"{name}: expected one of fractions {self.fractions}, got {wanted[0]}")
        if not set(self.curve_fractions) <= set(self.fractions):
            raise ValueError(f"curve_fractions: expected some of {self.fractions}, got {self.curve_fractions}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            fractions=(1.0, 1.9, 2.2), curve_fractions=(1.0, 2.2), n_samples=5, n_inputs=7, width=64,
            max_steps=100, curve_steps=7, seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=64, n_inputs=64, width=4096, chunk=1)


@dataclass(frozen=True)
class StepSize(Result):
    r"""How training went for each step size; arrays ``(seeds, fractions, networks)`` unless stated.

    Attributes:
        steps: Steps taken.
        reached: 1 where the target was reached, else 0.
        diverged: 1 where the loss blew up, else 0.
        monotone: 1 where the loss never rose, else 0.
        final_sharpness: $m\eta\lambda_{\max}(H)$ where training ended; above 2 a linear model diverges. 0 where the
            network diverged.
        practical: The step size $1/(m\lambda_{\max}(H^*))$, ``(seeds, networks)``.
        theorem: The step size of Theorem 4.2 with $B=1$, for softmax, ``(seeds,)``.
        curves: Loss over its first value, first seed, ``(curve fractions, networks, steps + 1)``; stopped or diverged
            networks keep their last value.
    """

    experiment: ClassVar[str] = "softmax_ntk.step_size"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, "seeds fractions networks"]
    reached: Float[np.ndarray, "seeds fractions networks"]
    diverged: Float[np.ndarray, "seeds fractions networks"]
    monotone: Float[np.ndarray, "seeds fractions networks"]
    final_sharpness: Float[np.ndarray, "seeds fractions networks"]
    practical: Float[np.ndarray, "seeds networks"]
    theorem: Float[np.ndarray, " seeds"]
    curves: Float[np.ndarray, "curves networks records"]

    def measurements(self) -> dict[str, Measurement]:
        """Return usable step sizes, the catapult and the theorem's step size, by claim id."""
        s, n = self.settings, len(self.settings.seeds)
        usable, beyond = s.fractions.index(s.usable) + 1, s.fractions.index(s.beyond)
        both = self.reached[:, :usable] * self.monotone[:, :usable]
        smooth = [ACTIVATIONS.index(name) for name in SMOOTH]
        rises, reached = 1 - self.monotone[:, beyond, smooth], self.reached[:, beyond, smooth]
        catapult = over_runs(n, np.mean, share_reached_softmax_exp=reached, share_with_a_rise_softmax_exp=rises)
        flat = over_runs(n, np.min, min_room_below_two_softmax_exp=2 - self.final_sharpness[:, beyond, smooth])
        return {
            "SN-ETA": over_seeds(
                median_practical_step_size_softmax=self.practical[:, 0],
                median_theorem_step_size=self.theorem,
                median_ratio=self.practical[:, 0] / self.theorem,
            ),
            "SN-ETA-usable": over_runs(n, np.mean, share_monotone_and_reached_all_networks=both),
            "SN-ETA-catapult": Measurement({**catapult.values, **flat.values}, {**catapult.spread, **flat.spread}, n),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> StepSize:
    """Train networks with step sizes around the limit of linear theory.

    Args:
        settings: Sizes, step sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        groups = [(fraction, activation) for fraction in s.fractions for activation in ACTIVATIONS]
        found = []
        with runtime.threads(1):
            for done, (fraction, activation) in enumerate(groups, 1):
                problem = Problem(activation, s.width, s.n_samples, s.n_inputs, s.n_outputs)
                trained = train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target, fraction=fraction)
                found.append(_statistics(trained, fraction, s))
                if inner:
                    inner(done, len(groups))
        shape = (len(seeds), len(s.fractions), len(ACTIVATIONS))
        arrays = {name: np.stack([f[name] for f in found], axis=1).reshape(shape) for name in KEPT}
        softmax = found[ACTIVATIONS.index("softmax")]["smallest_eigenvalue"]
        sizes = {"n_samples": s.n_samples, "n_outputs": s.n_outputs, "width": s.width}
        kept = [i for i, (fraction, _) in enumerate(groups) if fraction in s.curve_fractions]
        curves = np.stack([found[i]["curve"] for i in kept])
        return arrays | {
            "practical": np.stack([f["practical"] for f in found[: len(ACTIVATIONS)]], axis=1),
            "theorem": np.array([step_size_of_theorem(float(e), **sizes) for e in softmax]),
            "curves": curves.reshape(len(s.curve_fractions), len(ACTIVATIONS), -1),
        }

    parts = by_seeds(s, part, clock=clock, workdir=workdir, progress=progress)
    arrays = {name: np.concatenate([p[name] for p in parts]) for name in (*KEPT, "practical", "theorem")}
    return StepSize(settings=s, provenance=clock.provenance(where), curves=parts[0]["curves"], **arrays)


def _statistics(run: Run, fraction: float, s: Settings) -> dict[str, np.ndarray]:
    descent = run.descent
    sharpness = np.zeros(len(descent.steps))
    kept = np.flatnonzero(~descent.diverged)
    if len(kept):
        trained = descent.networks.subset(kept)
        top = torch.linalg.eigvalsh(ntk_gram(trained, run.inputs[kept]))[:, -1].cpu().double().numpy()
        sharpness[kept] = fraction * top / run.eigenvalues[kept, -1]
    rises = [np.diff(descent.loss[: steps + 1, k]).max() > 0 for k, steps in enumerate(descent.steps)]
    curve = descent.loss[: s.curve_steps + 1, 0] / descent.loss[0, 0]
    finite = np.where(np.isfinite(curve), curve, np.nanmax(np.where(np.isfinite(curve), curve, np.nan)))
    return {
        "steps": descent.steps.astype(float),
        "reached": descent.reached.astype(float),
        "diverged": descent.diverged.astype(float),
        "monotone": 1.0 - (np.array(rises) | descent.diverged),
        "final_sharpness": sharpness,
        "practical": (run.step_size / fraction).cpu().double().numpy(),
        "smallest_eigenvalue": run.eigenvalues[:, 0],
        "curve": np.pad(finite, (0, s.curve_steps + 1 - len(finite)), mode="edge"),
    }
