r"""What does the denominator buy? Steps and condition numbers when the inputs are not equally long.

At infinite width $K_{\exp}=D\,K_{\rm softmax}\,D$ with $D=\mathrm{diag}(e^{\sigma^2\|x_i\|^2/2})$: on unit inputs the
denominator changes the kernel by a constant only, on others it takes a diagonal scaling away. This book's experiment.
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
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import Sample, draw_sample
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, place, ratio_over_seeds, train

__all__ = ["InputNorms", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        lowest: Lowest input norms; norms are uniform between one of these and 1. The first must be 1, unit inputs.
        claimed: The lowest norm that the claims speak of, one of these.
        scales: Standard deviations of the initial weights; the claims speak of the first, and of the last as larger.
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        width: Number of neurons.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    lowest: tuple[float, ...] = (1.0, 0.7, 0.5, 0.2)
    claimed: float = 0.5
    scales: tuple[float, ...] = (1.0, 2.0)
    n_samples: int = 16
    n_inputs: int = 16
    width: int = 512
    target: float = 1e-3
    max_steps: int = 3000
    seeds: tuple[int, ...] = tuple(range(5))
    chunk: int = 5

    def __post_init__(self) -> None:
        if self.lowest[0] != 1 or not all(0 < low <= 1 for low in self.lowest):
            raise ValueError(f"lowest: expected norms in (0, 1], the first 1, got {self.lowest}")
        if self.claimed not in self.lowest:
            raise ValueError(f"claimed: expected one of lowest {self.lowest}, got {self.claimed}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(lowest=(1.0, 0.5), n_samples=5, n_inputs=7, width=32, max_steps=50, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=64, n_inputs=64, width=4096, chunk=1)

    def draw(self, seed: int, lowest: float) -> Sample:
        """Return the training set of a seed; the same directions, labels and order of norms for every lowest norm."""
        sample = draw_sample(self.n_samples, self.n_inputs, 1, seed=seed)
        uniform = stream(seed, "norms", self.n_samples).uniform(size=self.n_samples)
        return Sample(sample.inputs * (lowest + (1 - lowest) * uniform)[:, None], sample.labels)


@dataclass(frozen=True)
class InputNorms(Result):
    """How long training took; arrays ``(seeds, scales, lowest norms, networks)``.

    Attributes:
        steps: Steps taken; networks that did not arrive count with the largest number allowed.
        reached: 1 where the target was reached, else 0.
        condition: Largest over smallest eigenvalue of the kernel at the start.
    """

    experiment: ClassVar[str] = "softmax_ntk.input_norms"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, "seeds scales norms networks"]
    reached: Float[np.ndarray, "seeds scales norms networks"]
    condition: Float[np.ndarray, "seeds scales norms networks"]

    def measurements(self) -> dict[str, Measurement]:
        """Return ratios of steps, by claim id."""
        at = self.settings.lowest.index(self.settings.claimed)
        softmax, exp, _ = (self.steps[:, :, at, j] for j in range(len(ACTIVATIONS)))
        unit = self.steps[:, 0, 0]
        medians, each = np.median(unit, axis=0), unit.max(axis=1) / unit.min(axis=1)
        name = "max_over_min_steps"
        return {
            "SN-NORM-mild": ratio_over_seeds("ratio_exp_to_softmax", exp[:, 0], softmax[:, 0]),
            "SN-NORM-strong": ratio_over_seeds("ratio_exp_to_softmax", exp[:, -1], softmax[:, -1]),
            "SN-NORM-unit": Measurement(
                {name: float(medians.max() / medians.min())}, {name: (float(each.min()), float(each.max()))}, len(unit)
            ),
            "SN-NORM-relu": over_seeds(
                **{f"steps_{name}": self.steps[:, 0, at, j] for j, name in enumerate(ACTIVATIONS)}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> InputNorms:
    """Train the three networks on inputs of different norms.

    Args:
        settings: Norms, sizes and seeds.
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
        groups = [(scale, low, a) for scale in s.scales for low in s.lowest for a in ACTIVATIONS]
        found: dict[str, list[np.ndarray]] = {"steps": [], "reached": [], "condition": []}
        with runtime.threads(1):
            for done, (scale, low, activation) in enumerate(groups, 1):
                problem = Problem(activation, s.width, s.n_samples, s.n_inputs, scale=scale)
                samples = [s.draw(seed, low) for seed in seeds]
                trained = train(problem, seeds, device=where, max_steps=s.max_steps, target=s.target, samples=samples)
                found["steps"].append(trained.descent.steps.astype(float))
                found["reached"].append(trained.descent.reached.astype(float))
                found["condition"].append(trained.eigenvalues[:, -1] / trained.eigenvalues[:, 0])
                if inner:
                    inner(done, len(groups))
        shape = (len(seeds), len(s.scales), len(s.lowest), len(ACTIVATIONS))
        return {name: np.stack(values, axis=1).reshape(shape) for name, values in found.items()}

    arrays = concatenate(by_seeds(s, part, clock=clock, workdir=workdir, progress=progress))
    return InputNorms(settings=s, provenance=clock.provenance(where), **arrays)
