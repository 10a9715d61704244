r"""Corollary 1: how negative is the curvature of the loss, and how does it depend on the number of heads?

The extreme eigenvalues of true Hessians, beside the bounds of Corollary 1, at three kinds of points: *random* ones,
*trained* ones (gradient descent from there), and *lone* ones, where the first of $H$ heads does the work of a trained
single head and the others are zero: the same function for every $H$. Small Hessians are put together from Lemma 1 in
closed form; at the larger size, where all blocks would take gigabytes, their products with vectors come from
differentiating twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime, spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples
from attnbook.multi_head.models import hessians, network
from attnbook.multi_head.theory.curvature import LossConstants, loss_constants

__all__ = ["POINTS", "Curvature", "Settings", "double_device", "draw_batch", "draw_points", "run"]

POINTS = ("random", "trained", "lone")
# Whole Hessians with larger blocks than this are not put together: a block of 3000 rows takes 72 MB.
LARGEST_BLOCK = 1000


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; the paper's own are not in the text available to us.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        heads: Numbers of heads, increasing.
        scale: Standard deviation of the entries at random points, where training also starts.
        step_size: Step size of gradient descent; not tuned.
        steps: Steps from a random to a trained point.
        inspected: Heads of each network, the first ones, whose own blocks are looked at; at most all.
        seeds: Seeds of patterns, samples and random points.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 5
    dimension: int = 8
    n_patterns: int = 3
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.2
    noise: float = 0.1
    free_noise: float = 0.3
    n_samples: int = 40
    heads: tuple[int, ...] = (1, 4, 16, 64, 256)
    scale: float = 0.5
    step_size: float = 1.0
    steps: int = 100
    inspected: int = 8
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if len(self.heads) < 2 or list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 1:
            raise ValueError(f"heads: expected at least two increasing numbers of at least 1, got {self.heads}")
        for name in ("n_samples", "steps", "inspected"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little; larger tokens, so that all claims are measured."""
        return cls(dimension=9, heads=(1, 4, 8), steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger network, up to 192 000 parameters."""
        return cls(
            n_tokens=10,
            dimension=50,
            n_patterns=20,
            n_samples=50,
            heads=(1, 4, 16, 64),
            inspected=2,
        )

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            self.pattern_norm,
            self.relevant_fraction,
            self.noise,
            self.noise,
            self.free_noise,
        )

    @property
    def n_parameters(self) -> int:
        """Parameters of one head."""
        return (self.n_tokens + self.dimension) * self.dimension


@dataclass(frozen=True)
class Curvature(Result):
    r"""Extreme curvatures and what their bounds need, all ``(seeds, points, heads)`` with the points of :data:`POINTS`.

    Attributes:
        smallest: Smallest eigenvalue of the Hessian.
        largest: Largest eigenvalue of the Hessian.
        loss: The loss $\hat L$.
        gradient_norm: Norm of its gradient.
        head_norm: Norm of the largest head.
        typical_head: Median over the inspected heads of the most negative curvature of a head's own block, as a
            positive number.
        token_norm: Norm of the largest token of the sample, at least 1, ``(seeds,)``.
    """

    experiment: ClassVar[str] = "multi_head.curvature"
    settings_type: ClassVar[type] = Settings

    smallest: Float[np.ndarray, "seeds points heads"]
    largest: Float[np.ndarray, "seeds points heads"]
    loss: Float[np.ndarray, "seeds points heads"]
    gradient_norm: Float[np.ndarray, "seeds points heads"]
    head_norm: Float[np.ndarray, "seeds points heads"]
    typical_head: Float[np.ndarray, "seeds points heads"]
    token_norm: Float[np.ndarray, " seeds"]

    @property
    def relative(self) -> Float[np.ndarray, "seeds points heads"]:
        r"""The most negative curvature relative to the loss, $-\lambda_{\min}/\hat L$."""
        return -self.smallest / self.loss

    @property
    def scaled(self) -> Float[np.ndarray, "seeds points heads"]:
        r"""The same times $\sqrt H$."""
        return self.relative * np.sqrt(self.settings.heads)

    @property
    def slopes(self) -> Float[np.ndarray, "seeds points"]:
        r"""Slopes of $\log(-\lambda_{\min}/\hat L)$ in $\log H$, by least squares."""
        return self.slopes_of(self.relative)

    def slopes_of(self, values: Float[np.ndarray, "seeds points heads"]) -> Float[np.ndarray, "seeds points"]:
        r"""Return slopes of the logarithm of positive values in $\log H$, by least squares."""
        centred = np.log(self.settings.heads) - np.mean(np.log(self.settings.heads))
        return np.log(values) @ centred / (centred @ centred)

    def constants(self, name: str) -> Float[np.ndarray, "seeds points heads"]:
        """Return a constant of Corollary 1 at every point; ``name`` is an attribute of ``LossConstants``."""
        values = np.empty_like(self.loss)
        for index in np.ndindex(values.shape):
            values[index] = getattr(self._constants(index), name)
        return values

    @property
    def ratios(self) -> dict[str, Float[np.ndarray, "seeds points heads"]]:
        """Measured over stated, by the attribute of ``LossConstants`` that states it."""
        norm = np.maximum(-self.smallest, self.largest)
        return {
            "gradient": self.gradient_norm / (self.constants("gradient") * self.loss),
            "smoothness": norm / self.constants("smoothness"),
            "curvature": self.scaled / self.constants("curvature"),
            "dimension_free_curvature": self.scaled / self.constants("dimension_free_curvature"),
        }

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Corollary 1, by claim id."""
        ratios = self.ratios
        weak = _extremes(smallest_ratio=ratios["curvature"], largest_ratio=ratios["curvature"])
        sharp = _extremes(largest_ratio_sharp=ratios["dimension_free_curvature"], largest_ratio=ratios["curvature"])
        measured = {
            "MH-C1.1": _extremes(largest_ratio=ratios["gradient"]),
            "MH-C1.2": _extremes(largest_ratio=ratios["smoothness"]),
            "MH-C1.2-slack": _extremes(largest_ratio=ratios["smoothness"]),
            "MH-C1.3": weak,
            "MH-C1.3-sharp": sharp,
            "MH-C1.4": over_seeds(slope_trained=self.slopes[:, POINTS.index("trained")]),
            "MH-C1.4-random": over_seeds(slope_random=self.slopes[:, POINTS.index("random")]),
            "MH-C1.4-flat": self._flat(),
        }
        if self.settings.dimension > Settings.book().dimension:
            measured["MH-C1.4-full-size"] = self._flat()
        return measured

    def _flat(self) -> Measurement:
        """Largest and smallest median over seeds at trained points, over head counts from 4 on."""
        many = np.array(self.settings.heads) >= 4
        scaled = self.scaled[:, POINTS.index("trained"), many]
        medians = np.median(scaled, axis=0)
        at = {"largest_scaled_curvature": medians.argmax(), "smallest_scaled_curvature": medians.argmin()}
        values = {name: float(medians[i]) for name, i in at.items()}
        spread = {name: (float(scaled[:, i].min()), float(scaled[:, i].max())) for name, i in at.items()}
        return Measurement(values, spread, len(scaled))

    def _constants(self, index: tuple[int, ...]) -> LossConstants:
        return loss_constants(
            n_tokens=self.settings.n_tokens,
            dimension=self.settings.dimension,
            n_heads=self.settings.heads[index[2]],
            token_norm=float(self.token_norm[index[0]]),
            largest_head_norm=float(self.head_norm[index]),
        )


def double_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on in float64: as ``runtime.device``, but the CPU in the place of mps.

    Args:
        name: A device; default cuda where there is one, else the CPU.

    Returns:
        The device.

    Raises:
        ValueError: If this machine has no such device.
    """
    found = runtime.device(name)
    return torch.device("cpu") if found.type == "mps" else found


def draw_batch(settings: Settings, seeds: tuple[int, ...], *, device: torch.device) -> network.Batch:
    """Draw the training samples of some seeds.

    Args:
        settings: Sizes.
        seeds: Seeds, one member each.
        device: Where they are wanted.

    Returns:
        Tokens ``(seeds, samples, tokens, dimension)`` and labels ``(seeds, samples)``.
    """
    drawn = []
    for seed in seeds:
        patterns = draw_patterns(settings.mixture, rng=stream(seed, "patterns"))
        drawn.append(draw_samples(settings.mixture, patterns, settings.n_samples, rng=stream(seed, "samples")))
    tokens, labels = (np.stack([getattr(one, name) for one in drawn]) for name in ("tokens", "labels"))
    return _double(tokens, device), _double(labels, device)


def draw_points(
    settings: Settings, n_heads: int, seeds: tuple[int, ...], batch: network.Batch
) -> dict[str, Parameters]:
    """Return networks at the points of :data:`POINTS`; the heads of a smaller random network are those of a larger one.

    Args:
        settings: Sizes, scale and training.
        n_heads: Number of heads.
        seeds: Seeds, one member each.
        batch: Their samples.

    Returns:
        Point to stacked parameters, on the device of the samples.

    Raises:
        FloatingPointError: If training diverges.
    """

    def train(start: Parameters) -> Parameters:
        return network.gradient_descent(start, batch, step_size=settings.step_size, steps=settings.steps).parameters

    random, single = (_draw_start(settings, count, seeds, batch[0].device) for count in (n_heads, 1))
    lone = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    for name, tensor in train(single).items():
        lone[name][:, :1] = tensor
    lone["decoder"] *= math.sqrt(n_heads)
    return {"random": random, "trained": train(random), "lone": lone}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Curvature:
    """Measure the extreme curvature of the loss at random and trained points.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU. Eigenvalues are computed on
            the CPU.
        progress: Told (head counts done, head counts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        batch = draw_batch(settings, seeds, device=where)
        by_heads = []
        for number, n_heads in enumerate(settings.heads, 1):
            points = draw_points(settings, n_heads, seeds, batch)
            by_heads.append([_measure_point(settings, points[name], batch) for name in POINTS])
            if inner:
                inner(number, len(settings.heads))
        names = by_heads[0][0]
        arrays = {name: np.array([[point[name] for point in row] for row in by_heads]) for name in names}
        token_norm = batch[0].norm(dim=3).amax((1, 2)).clamp(min=1).cpu().numpy()
        return {name: array.transpose(2, 1, 0) for name, array in arrays.items()} | {"token_norm": token_norm}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Curvature(settings=settings, provenance=clock.provenance(where), **arrays)


def _draw_start(settings: Settings, n_heads: int, seeds: tuple[int, ...], device: torch.device) -> Parameters:
    drawn = [
        network.draw_parameters(
            n_heads, settings.n_tokens, settings.dimension, scale=settings.scale, rng=stream(seed, "random point")
        )
        for seed in seeds
    ]
    return {name: _double(np.stack([one[name] for one in drawn]), device) for name in drawn[0]}


def _measure_point(settings: Settings, parameters: Parameters, batch: network.Batch) -> dict[str, np.ndarray]:
    """What is measured at one point, each ``(members,)``."""
    loss, gradients = network.loss_and_gradient(parameters, batch)
    squares = sum(g.square().flatten(1).sum(1) for g in gradients.values())
    extremes = np.array([_extreme_curvature(parameters, batch, member) for member in range(len(loss))])
    typical = [_typical_head(parameters, batch, member, settings.inspected) for member in range(len(loss))]
    return {
        "typical_head": np.array(typical),
        "smallest": extremes[:, 0],
        "largest": extremes[:, 1],
        "loss": loss.cpu().numpy(),
        "gradient_norm": torch.as_tensor(squares).sqrt().cpu().numpy(),
        "head_norm": network.largest_head_norm(parameters).cpu().numpy(),
    }


def _extreme_curvature(parameters: Parameters, batch: network.Batch, member: int) -> tuple[float, float]:
    own, tokens, labels = _of_member(parameters, batch, member)
    product: spectrum.Product
    if own["decoder"][0].numel() + own["key_query"][0].numel() <= LARGEST_BLOCK:
        hessian = hessians.loss_hessian(own, tokens, labels)
        product, size = hessian.product, hessian.size
    else:

        def loss(p: Parameters) -> Tensor:
            stacked = {name: tensor.unsqueeze(0) for name, tensor in p.items()}
            return network.losses(stacked, (tokens.unsqueeze(0), labels.unsqueeze(0)))[0]

        product, size = spectrum.hessian_product(loss, own)
    return spectrum.extreme_eigenvalues(product, size, dense_below=300, tolerance=1e-3)


def _typical_head(parameters: Parameters, batch: network.Batch, member: int, inspected: int) -> float:
    """Median over the first heads of the most negative eigenvalue of a head's own block, times minus one."""
    own, tokens, labels = _of_member(parameters, batch, member)
    weights = hessians.block_weights(own, tokens, labels)
    found = []
    for head in range(min(inspected, len(own["decoder"]))):
        one = {name: tensor[head : head + 1] for name, tensor in own.items()}
        block = hessians.head_hessians(one, tokens, weights)[0].cpu().numpy()
        found.append(-spectrum.extreme_eigenvalues(block.__matmul__, len(block), dense_below=0, tolerance=1e-3)[0])
    return float(np.median(found))


def _of_member(parameters: Parameters, batch: network.Batch, member: int) -> tuple[Parameters, Tensor, Tensor]:
    return {name: tensor[member] for name, tensor in parameters.items()}, batch[0][member], batch[1][member]


def _extremes(**ratios: np.ndarray) -> Measurement:
    """The largest (or smallest, as named) over everything, with the range over seeds of each seed's own."""
    of = {name: np.min if name.startswith("smallest") else np.max for name in ratios}
    per_seed = {name: of[name](array.reshape(len(array), -1), axis=1) for name, array in ratios.items()}
    values = {name: float(of[name](array)) for name, array in per_seed.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in per_seed.items()}
    return Measurement(values, spread, len(next(iter(per_seed.values()))))


def _double(values: np.ndarray, device: torch.device) -> Tensor:
    return to_tensor(values, device=device, dtype=torch.float64)
