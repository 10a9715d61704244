"""Lemma 5.1: how far does the kernel move when every neuron moves by at most a given radius?

The paper has no experiments; this one is the book's. Bounds are vacuous, so slopes and orders are measured: against the
radius in four directions, the width, the numbers of samples and outputs, and the scale of the weights.
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
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.experiments.perturbed import Start
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, ROUNDING, Problem, over_runs, place
from attnbook.softmax_ntk.experiments.summaries import extent, range_of, ratios, slopes_named
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.perturbations import Direction
from attnbook.softmax_ntk.stability_bounds import kernel_change_bound, relu_change_bound

__all__ = ["DIRECTIONS", "KernelMovement", "Settings", "run"]

DIRECTIONS: tuple[Direction, ...] = ("random", "common", "spread", "gdlike")
TWO: tuple[Direction, ...] = ("random", "spread")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        width: Number of neurons.
        radii: How far each neuron moves, increasing.
        radius: How far it moves where other sizes vary; one of the radii, the lemma's largest.
        widths: Numbers of neurons; the last one is compared with the one two places before.
        sizes: Numbers of samples.
        outputs: Numbers of outputs.
        scales: Standard deviations of the initial weights.
        large_scales: How many of the last of them count as large.
        seeds: Seeds of data, weights and directions.
        chunk: Seeds computed together.
    """

    n_samples: int = 32
    n_inputs: int = 16
    n_outputs: int = 2
    width: int = 1024
    radii: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    radius: float = 0.01
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    outputs: tuple[int, ...] = (1, 2, 4, 8)
    scales: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    large_scales: int = 2
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 8

    def __post_init__(self) -> None:
        for name, least in {"radii": 2, "widths": 3, "sizes": 2, "outputs": 2, "scales": 2}.items():
            values = getattr(self, name)
            if len(values) < least or sorted(set(values)) != list(values):
                raise ValueError(f"{name}: expected at least {least} increasing numbers, got {values}")
        if self.radius not in self.radii:
            raise ValueError(f"radius: expected one of the radii {self.radii}, got {self.radius}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=5, n_inputs=7, width=32, radii=(0.01, 0.1), widths=(8, 16, 32), sizes=(3, 5), outputs=(1, 2),
            scales=(1.0, 2.0), large_scales=1, seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=128, n_outputs=4, width=16384, widths=(*cls.widths, 16384, 32768), chunk=1)

    @property
    def allowed(self) -> tuple[float, ...]:
        """Radii up to that of the lemma."""
        return tuple(r for r in self.radii if r <= self.radius)


@dataclass(frozen=True)
class KernelMovement(Result):
    r"""Changes of the kernel, $\|H(\tilde W)-H(W)\|_F$ unless stated; directions in the order of :data:`DIRECTIONS`.

    Attributes:
        change: Against the radius.
        norm: $\|H(W)\|_F$ of the same networks.
        exponent: Their largest $|\\langle w_r,x_i\\rangle|$, the measured $B$.
        one_output: The change against the allowed radii with one output, ReLU.
        by_width: Change over norm against the width.
        by_size: Against the number of samples, random and spread.
        by_outputs: Against the number of outputs, random.
        by_scale: Against the scale of the weights, one output, random.
        norm_by_scale: Norms of the same kernels.
    """

    experiment: ClassVar[str] = "softmax_ntk.kernel_movement"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    change: Float[np.ndarray, "seeds radii directions networks"]
    norm: Float[np.ndarray, "seeds networks"]
    exponent: Float[np.ndarray, " seeds"]
    one_output: Float[np.ndarray, "seeds allowed directions"]
    by_width: Float[np.ndarray, "seeds widths directions networks"]
    by_size: Float[np.ndarray, "seeds sizes two_directions networks"]
    by_outputs: Float[np.ndarray, "seeds outputs networks"]
    by_scale: Float[np.ndarray, "seeds scales networks"]
    norm_by_scale: Float[np.ndarray, "seeds scales networks"]

    def relative(self, direction: Direction, network: str) -> Float[np.ndarray, "seeds radii"]:
        """Return change over norm, against the radius, of one direction and one network."""
        j = ACTIVATIONS.index(network)
        return self.change[:, :, DIRECTIONS.index(direction), j] / self.norm[:, None, j]

    def bounds(self, *, exponent: float | None = None) -> Float[np.ndarray, "seeds allowed"]:
        """Return Lemma 5.1's bound for each allowed radius, with the measured $B$ of each seed or a given one."""
        s = self.settings
        given = self.exponent if exponent is None else np.full(len(self.exponent), exponent)
        sizes = {"n_samples": s.n_samples, "n_outputs": s.n_outputs}
        return np.array([[kernel_change_bound(r, exponent=float(b), **sizes) for r in s.allowed] for b in given])

    def measurements(self) -> dict[str, Measurement]:
        """Return sizes of bounds, slopes and ratios, by claim id."""
        return self._bounds() | self._against_radius() | self._against_sizes() | self._against_scale()

    def _bounds(self) -> dict[str, Measurement]:
        s, n = self.settings, len(self.settings.seeds)
        at = len(s.allowed)
        changes = self.change[:, :at, :, 0]
        unit, largest = float(self.bounds(exponent=1.0)[0, -1]), changes[:, -1].max(axis=1)
        relu = np.array([relu_change_bound(r, n_samples=s.n_samples) for r in s.allowed])
        return {
            "SN-L5.1": over_runs(n, np.max, max_ratio_to_bound=changes / self.bounds()[:, :, None]),
            "SN-L5.1c": Measurement(
                {"bound_with_unit_exponent": unit, "measured_change": float(largest.max())},
                {"measured_change": (float(largest.min()), float(largest.max()))},
                n,
            ),
            "SN-L5.1-relu": over_runs(n, np.max, max_ratio_to_bound=self.one_output / relu[:, None]),
        }

    def _against_radius(self) -> dict[str, Measurement]:
        radii, n = self.settings.radii, len(self.settings.seeds)

        def of(direction: Direction, *names: str) -> Measurement:
            return slopes_named(radii, **{f"slope_{name}": self.relative(direction, name) for name in names})

        return {
            "SN-L5.1R-random": of("random", "softmax", "exp"),
            "SN-L5.1R-spread": of("spread", "softmax", "exp"),
            "SN-L5.1R-common-softmax": over_runs(n, np.max, max_relative_change=self.relative("common", "softmax")),
            "SN-L5.1R-common-exp": of("common", "exp"),
            "SN-L5.1R-gdlike": of("gdlike", "softmax", "exp"),
            "SN-L5.1R-relu": extent("slope_relu", radii, [self.relative(d, "relu") for d in DIRECTIONS]),
        }

    def _against_sizes(self) -> dict[str, Measurement]:
        s = self.settings
        random, common, spread = (self.by_width[:, :, DIRECTIONS.index(d)] for d in ("random", "common", "spread"))
        saturated = {"softmax_spread": spread[:, :, 0], "exp_common": common[:, :, 1]}
        grown = np.moveaxis(self.by_size.reshape(*self.by_size.shape[:2], -1), 2, 0)
        outputs = {f"slope_{name}": self.by_outputs[:, :, j] for j, name in enumerate(ACTIVATIONS)}
        return {
            "SN-L5.1m": extent("slope", s.widths, np.moveaxis(random, 2, 0)),
            "SN-L5.1m-worst": ratios(**{f"ratio_{k}": (v[:, -1], v[:, -3]) for k, v in saturated.items()}),
            "SN-L5.1n": extent("slope", s.sizes, grown),
            "SN-L5.1d": slopes_named(s.outputs, **outputs),
        }

    def _against_scale(self) -> dict[str, Measurement]:
        changes = np.maximum(self.by_scale, ROUNDING)
        softmax, exp, relu = (np.median(changes[..., j], axis=0) for j in range(3))
        large = slice(-self.settings.large_scales, None)
        each = changes[:, large]
        found = {
            "min_ratio_exp_to_softmax": ((exp / softmax)[large], each[..., 1] / each[..., 0]),
            "min_ratio_softmax_to_relu": ((softmax / relu)[large], each[..., 0] / each[..., 2]),
        }
        relative = (changes / self.norm_by_scale)[:, -1]
        flat = changes[..., 2].max(axis=1) / changes[..., 2].min(axis=1)
        return {
            "SN-L5.1s": Measurement(
                {name: float(medians.min()) for name, (medians, _) in found.items()},
                {name: range_of(seeds.min(axis=1)) for name, (_, seeds) in found.items()},
                len(each),
            ),
            "SN-L5.1s-relu": Measurement(
                {"max_over_min_change_relu": float(relu.max() / relu.min())},
                {"max_over_min_change_relu": range_of(flat)},
                len(each),
            ),
            "SN-L5.1s-relative": ratios(ratio_exp_to_softmax=(relative[:, 1], relative[:, 0])),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> KernelMovement:
    """Move the neurons of many networks and compare their kernels.

    Args:
        settings: Sizes and seeds.
        device: Where to compute; default the first of cuda, mps and cpu.
        progress: Told (sweeps done, sweeps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), place(device)

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            found = []
            for done, activation in enumerate(ACTIVATIONS, 1):
                found.append(_sweeps(settings, activation, seeds, where))
                if inner:
                    inner(done, len(ACTIVATIONS))
        arrays = {name: np.stack([one[name] for one in found], axis=-1) for name in found[0]}
        return arrays | {"exponent": arrays["exponent"][..., 0], "one_output": arrays["one_output"][..., 2]}

    arrays = concatenate(by_seeds(settings, part, clock=clock, workdir=workdir, progress=progress))
    return KernelMovement(settings=settings, provenance=clock.provenance(where), **arrays)


def _sweeps(s: Settings, activation: Activation, seeds: tuple[int, ...], device: torch.device) -> dict[str, np.ndarray]:
    """All sweeps of one network; every array starts with the seeds."""
    start = Start(Problem(activation, s.width, s.n_samples, s.n_inputs, s.n_outputs), seeds, device)
    one, at = start.of(n_outputs=1), (s.radius,)
    wide = [start.of(width=m) for m in s.widths]
    scaled = [one.of(scale=scale) for scale in s.scales]
    return {
        "change": start.changes(DIRECTIONS, s.radii),
        "norm": start.norm(),
        "exponent": start.exponent(),
        "one_output": one.changes(DIRECTIONS, s.allowed),
        "by_width": np.stack([w.changes(DIRECTIONS, at)[:, 0] / w.norm()[:, None] for w in wide], axis=1),
        "by_size": np.stack([start.of(n_samples=n).changes(TWO, at)[:, 0] for n in s.sizes], axis=1),
        "by_outputs": np.stack([start.of(n_outputs=d).changes(TWO[:1], at)[:, 0, 0] for d in s.outputs], axis=1),
        "by_scale": np.stack([w.changes(TWO[:1], at)[:, 0, 0] for w in scaled], axis=1),
        "norm_by_scale": np.stack([w.norm() for w in scaled], axis=1),
    }
