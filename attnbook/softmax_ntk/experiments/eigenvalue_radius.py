"""Claim E.5: how far may the neurons move before the smallest eigenvalue of the kernel has lost half?

The paper has no experiments; this one is the book's. Radii go far beyond the certified one, in a random
direction, all alike, along one axis and, as an opponent would choose it, towards the origin.
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
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, over_runs, place
from attnbook.softmax_ntk.experiments.summaries import range_of
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.perturbations import DIRECTIONS as ALL
from attnbook.softmax_ntk.perturbations import Direction
from attnbook.softmax_ntk.stability_bounds import certified_radius

__all__ = ["DIRECTIONS", "EigenvalueRadius", "Settings", "run"]

DIRECTIONS: tuple[Direction, ...] = ("random", "common", "spread", "inward")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        sizes: Numbers of samples.
        n_inputs: Number of inputs; half of the sizes are larger, so that a linear kernel would be singular.
        outputs: Numbers of outputs, increasing; networks with fewer are the first outputs of those with the most.
        width: Number of neurons.
        radii: How far each neuron moves, increasing; the first is the largest that Lemma 5.1 allows.
        shown_radii: Radii of the spectra that the slider shows, at one seed.
        shown_size: Number of samples of these spectra, one output.
        seeds: Seeds of data, weights and directions.
        chunk: Seeds computed together.
    """

    sizes: tuple[int, ...] = (16, 32, 64)
    n_inputs: int = 16
    outputs: tuple[int, ...] = (1, 2)
    width: int = 1024
    radii: tuple[float, ...] = (0.01, *(float(2 ** (k / 4)) for k in range(-4, 17)))
    shown_radii: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    shown_size: int = 32
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 8

    def __post_init__(self) -> None:
        for name in ("sizes", "outputs", "radii", "shown_radii"):
            values = getattr(self, name)
            if sorted(set(values)) != list(values) or not values or values[0] <= 0:
                raise ValueError(f"{name}: expected positive increasing numbers, got {values}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing; the rules name these numbers of samples."""
        return cls(
            width=64, n_inputs=17, outputs=(1,), radii=(0.01, 4.0), shown_radii=(1.0, 4.0), shown_size=7,
            seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(sizes=(16, 32, 64, 128, 256), width=8192, seeds=tuple(range(10)), chunk=1)


@dataclass(frozen=True)
class EigenvalueRadius(Result):
    r"""Smallest eigenvalues before and after a move; directions in the order of :data:`DIRECTIONS`.

    Attributes:
        before: $\lambda$ of $H(W)$.
        after: Smallest eigenvalue of $H(\tilde W)$.
        exponent: Largest $|\\langle w_r,x_i\\rangle|$ of each network, the measured $B$.
        spectra: Eigenvalues after the shown radii, in all five directions, first seed, increasing.
        spectra_before: The same before.
    """

    experiment: ClassVar[str] = "softmax_ntk.eigenvalue_radius"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    before: Float[np.ndarray, "seeds outputs sizes networks"]
    after: Float[np.ndarray, "seeds outputs sizes radii directions networks"]
    exponent: Float[np.ndarray, "seeds outputs sizes"]
    spectra: Float[np.ndarray, "one all_directions shown_radii rows networks"]
    spectra_before: Float[np.ndarray, "one rows networks"]

    def ratio(self) -> Float[np.ndarray, "seeds outputs sizes radii directions networks"]:
        """Return what is left of the smallest eigenvalue."""
        return self.after / self.before[..., None, None, :]

    def first_loss(self) -> Float[np.ndarray, "seeds outputs sizes directions networks"]:
        """Return the first radius at which less than half is left; infinite if there is none."""
        radii = np.array([*self.settings.radii, np.inf])
        lost = self.ratio() < 0.5
        return radii[np.where(lost.any(axis=3), lost.argmax(axis=3), len(radii) - 1)]

    def last_harmless(self) -> Float[np.ndarray, "seeds outputs sizes directions networks"]:
        """Return the largest radius up to which at least half is left at every radius tried; 0 if there is none."""
        radii = np.array([0.0, *self.settings.radii])
        lost = self.ratio() < 0.5
        return radii[np.where(lost.any(axis=3), lost.argmax(axis=3), len(radii) - 1)]

    def certified(self) -> Float[np.ndarray, "seeds outputs sizes"]:
        """Return Claim E.5's radius of the softmax networks, with the measured $B$."""
        s = self.settings

        def of(i: int, j: int, k: int) -> float:
            eigenvalue, exponent = float(self.before[i, j, k, 0]), float(self.exponent[i, j, k])
            return certified_radius(eigenvalue, n_samples=s.sizes[k], n_outputs=s.outputs[j], exponent=exponent)

        return np.vectorize(of)(*np.indices(self.exponent.shape))

    def measurements(self) -> dict[str, Measurement]:
        """Return what is left of the eigenvalue and the radii of its loss, by claim id."""
        return self._ratios() | self._radii()

    def _ratios(self) -> dict[str, Measurement]:
        n, random, spread, inward = len(self.settings.seeds), *map(DIRECTIONS.index, ("random", "spread", "inward"))
        softmax, exp = (self.ratio()[..., ACTIVATIONS.index(name)] for name in ("softmax", "exp"))
        least = {
            "SN-E5": softmax[:, :, :, :1, [random, spread, inward]],
            "SN-E5-far": softmax[..., [random, spread]],
            "SN-E5-exp": exp[..., [random, spread]],
        }
        return {name: over_runs(n, np.min, min_eigenvalue_ratio=ratio) for name, ratio in least.items()}

    def _radii(self) -> dict[str, Measurement]:
        n, sizes = len(self.settings.seeds), self.settings.sizes
        relu, softmax = self.losses_of("spread", "relu"), self.losses_of("inward", "softmax")
        each = {f"radius_n{m}": np.median(relu[:, :, i], axis=1) for i, m in enumerate(sizes)}
        pooled = {f"radius_n{m}": float(np.median(relu[:, :, i])) for i, m in enumerate(sizes)}
        beyond = [i for i, m in enumerate(sizes) if m > self.settings.n_inputs]
        directions = list(map(DIRECTIONS.index, ("random", "spread", "inward")))
        harmless = self.last_harmless()[..., directions, ACTIVATIONS.index("softmax")].min(axis=(1, 2, 3))
        certified = self.certified().max(axis=(1, 2))
        return {
            "SN-E5-relu": Measurement(pooled, {name: range_of(values) for name, values in each.items()}, n),
            "SN-E5-inward": over_runs(n, np.max, max_radius_softmax=softmax[:, :, beyond]),
            "SN-E5-radius": Measurement(
                {"certified_radius": float(certified.max()), "harmless_radius": float(harmless.min())},
                {"certified_radius": range_of(certified), "harmless_radius": range_of(harmless)},
                n,
            ),
        }

    def losses_of(self, direction: Direction, network: Activation) -> Float[np.ndarray, "seeds outputs sizes"]:
        """Return the first radius at which less than half is left, of one direction and one network."""
        return self.first_loss()[..., DIRECTIONS.index(direction), ACTIVATIONS.index(network)]


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> EigenvalueRadius:
    """Move the neurons of networks ever farther and follow the smallest eigenvalue of their kernels.

    Args:
        settings: Sizes and seeds.
        device: Where to compute; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        groups = [(n, a) for n in s.sizes for a in ACTIVATIONS]
        found = []
        with runtime.threads(1):
            for done, (n, activation) in enumerate(groups, 1):
                found.append(_sweep(s, Problem(activation, s.width, n, s.n_inputs, s.outputs[-1]), seeds, where))
                if inner:
                    inner(done, len(groups))
        shape = (len(s.sizes), len(ACTIVATIONS))
        stacked = {k: np.stack([f[k] for f in found]).reshape(*shape, *found[0][k].shape) for k in found[0]}
        exponent = np.moveaxis(stacked["exponent"][:, 0], 1, 0)[:, None]
        return {
            "before": np.einsum("najd->jdna", stacked["before"]),
            "after": np.einsum("narijd->jdnria", stacked["after"]),
            "exponent": np.repeat(exponent, len(s.outputs), axis=1),  # of the weights, which all outputs share
        }

    arrays = concatenate(by_seeds(s, part, clock=clock, workdir=workdir, progress=progress))
    spectra = [_spectra(s, activation, where) for activation in ACTIVATIONS]
    after, before = (np.stack(parts, axis=-1)[None] for parts in zip(*spectra, strict=True))
    return EigenvalueRadius(
        settings=s, provenance=clock.provenance(where), spectra=after, spectra_before=before, **arrays
    )


def _sweep(s: Settings, problem: Problem, seeds: tuple[int, ...], device: torch.device) -> dict[str, np.ndarray]:
    start = Start(problem, seeds, device)

    def smallest(kernel: torch.Tensor) -> np.ndarray:
        """Smallest eigenvalue of the networks with the first outputs only, ``(seeds, outputs)``."""
        n, d = problem.n_samples, problem.n_outputs
        blocks = kernel.view(-1, d, n, d, n)
        first = [blocks[:, :k, :, :k].reshape(-1, k * n, k * n) for k in s.outputs]
        return np.stack([_eigenvalues(matrix)[:, 0] for matrix in first], axis=1)

    after = [[smallest(start.moved_kernel(d, r)) for d in DIRECTIONS] for r in s.radii]
    return {"before": smallest(start.kernel), "after": np.array(after), "exponent": start.exponent()}


def _spectra(s: Settings, activation: Activation, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    start = Start(Problem(activation, s.width, s.shown_size, s.n_inputs), s.seeds[:1], device)
    after = [[_eigenvalues(start.moved_kernel(d, r))[0] for r in s.shown_radii] for d in ALL]
    return np.array(after), _eigenvalues(start.kernel)[0]


def _eigenvalues(kernel: torch.Tensor) -> np.ndarray:
    return torch.linalg.eigvalsh(kernel).cpu().double().numpy()
