r"""Corollary 1: how negative is the curvature of the loss, and how does it depend on the number of heads?

The extreme eigenvalues of true Hessians beside the bounds of Corollary 1, at random, trained and lone points. Small
Hessians are put together from Lemma 1 in closed form; at the larger size, where all blocks would take gigabytes, their
products with vectors come from differentiating twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.experiments.points import POINTS, Settings, double_device, draw_batch, draw_points
from attnbook.multi_head.models import hessians, network
from attnbook.multi_head.theory.curvature import LossConstants, loss_constants

__all__ = ["POINTS", "Curvature", "Settings", "run"]

# Whole Hessians with larger blocks than this are not put together: a block of 3000 rows takes 72 MB.
LARGEST_BLOCK = 1000


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
