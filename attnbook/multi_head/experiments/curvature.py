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
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import derivatives, network
from attnbook.multi_head.curvature_bounds import LossConstants, loss_constants
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.points import POINTS, Settings, draw_points

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
        typical_head: Median over all heads of the most negative curvature of a head's own block, as a positive number;
            infinite where the blocks are too large to be put together.
        worst_head: The same for the worst of all heads.
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
    worst_head: Float[np.ndarray, "seeds points heads"]
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
        sharp = extremes_over_seeds(
            largest_ratio_sharp=ratios["dimension_free_curvature"], largest_ratio=ratios["curvature"]
        )
        measured = {
            "MH-C1.1": extremes_over_seeds(largest_ratio=ratios["gradient"]),
            "MH-C1.2": extremes_over_seeds(largest_ratio=ratios["smoothness"]),
            "MH-C1.2-slack": extremes_over_seeds(largest_ratio=ratios["smoothness"]),
            "MH-C1.3": extremes_over_seeds(largest_ratio=ratios["curvature"]),
            "MH-C1.3-sharp": sharp,
            "MH-C1.4": over_seeds(slope_trained=self.slopes[:, POINTS.index("trained")]),
            "MH-C1.4-random": over_seeds(slope_random=self.slopes[:, POINTS.index("random")]),
            "MH-C1.4-flat": self._flat(),
            "MH-C1.4-equal-loss": over_seeds(slope_equal_loss=self.slopes[:, POINTS.index("equal")]),
            "MH-B13.12": _merge(extremes_over_seeds(largest_smallest_eigenvalue=self.smallest), self._ends()),
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

    def _ends(self) -> Measurement:
        """The relative curvature at the fewest and at the most heads, where the latter is nearest to the former."""
        relative = self.relative[:, [POINTS.index(name) for name in ("random", "trained", "equal")]]
        return extremes_over_seeds(largest_widest_over_single=relative[..., -1] / relative[..., 0])

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
    """Measure the extreme curvature of the loss at the points of :data:`POINTS`.

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
        FloatingPointError: If training diverges or does not reach the equal loss.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        batch = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)[:2]
        by_heads = []
        for number, n_heads in enumerate(settings.heads, 1):
            points = draw_points(settings, n_heads, seeds, batch)
            by_heads.append([_measure_point(points[name], batch) for name in POINTS])
            if inner:
                inner(number, len(settings.heads))
        names = by_heads[0][0]
        arrays = {name: np.array([[point[name] for point in row] for row in by_heads]) for name in names}
        token_norm = batch[0].norm(dim=3).amax((1, 2)).clamp(min=1).cpu().numpy()
        return {name: array.transpose(2, 1, 0) for name, array in arrays.items()} | {"token_norm": token_norm}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return Curvature(settings=settings, provenance=clock.provenance(where), **arrays)


def _measure_point(parameters: Parameters, batch: network.Batch) -> dict[str, np.ndarray]:
    """What is measured at one point, each ``(members,)``."""
    loss, gradients = network.loss_and_gradient(parameters, batch)
    squares = sum(g.square().flatten(1).sum(1) for g in gradients.values())
    found = [_eigenvalues(parameters, batch, member) for member in range(len(loss))]
    return {
        **{name: np.array([one[name] for one in found]) for name in found[0]},
        "loss": loss.cpu().numpy(),
        "gradient_norm": torch.as_tensor(squares).sqrt().cpu().numpy(),
        "head_norm": network.largest_head_norm(parameters).cpu().numpy(),
    }


def _eigenvalues(parameters: Parameters, batch: network.Batch, member: int) -> dict[str, float]:
    """Extreme eigenvalues of the whole, and of the blocks of all heads where these are small."""
    own = {name: tensor[member] for name, tensor in parameters.items()}
    tokens, labels = batch[0][member], batch[1][member]
    product: spectrum.Product
    if own["decoder"][0].numel() + own["key_query"][0].numel() <= LARGEST_BLOCK:
        hessian = derivatives.loss_hessian(own, tokens, labels)
        product, size = hessian.product, hessian.size
        of_heads = -np.linalg.eigvalsh(hessian.blocks)[:, 0]
    else:

        def loss(p: Parameters) -> Tensor:
            stacked = {name: tensor.unsqueeze(0) for name, tensor in p.items()}
            return network.losses(stacked, (tokens.unsqueeze(0), labels.unsqueeze(0)))[0]

        product, size = spectrum.hessian_product(loss, own)
        of_heads = np.array([np.inf])
    smallest, largest = spectrum.extreme_eigenvalues(product, size, dense_below=300, tolerance=1e-3)
    heads = {"typical_head": float(np.median(of_heads)), "worst_head": float(of_heads.max())}
    return {"smallest": smallest, "largest": largest, **heads}


def _merge(one: Measurement, other: Measurement) -> Measurement:
    return Measurement({**one.values, **other.values}, {**one.spread, **other.spread}, one.n_seeds)
