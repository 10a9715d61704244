"""The part of ``loss_landscape`` on Theorem 4: one function on its orbit of rescalings, and what an L2 penalty does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor

from attnbook.core.results import Measurement, over_seeds
from attnbook.core.rng import stream
from attnbook.global_attention.rescaling import (
    Network,
    allowed_triangle,
    hessian_scaling,
    least_penalty_factor,
    log_volume_factor,
    rescale,
    rescaled_sharpness,
)
from attnbook.global_attention.two_layer import Activation, Hessian, ReLU, Softplus, loss_and_gradient

__all__ = ["MAP_RANGE", "QUANTITIES", "Minimum", "claims", "orbit", "orbit_map", "quantities"]

MASK_FACTORS = (0.001, 0.01, 0.1, 0.5, 1.0, 10.0)
HIDDEN_FACTORS = (0.1, 1.0, 10.0)
# Room that the assumptions leave: the bounds on the norms are this many times the norms of the minimum.
ROOM = 3.0
MAP_RANGE = (-3.0, 3.0)
"""Natural logarithms of the factors over which the orbit is mapped."""

QUANTITIES = (
    "function_error", "gradient", "volume_error", "hessian_error", "eigenvalue_over_bound", "limit_change",
    "loss_change", "volume_gain", "softplus_error", "rescaled_softplus_error", "triangle_mismatches", "triangle_area",
    "penalty_growth", "escape_penalty", "escape_sharpness", "gradient_formula_error",
)  # fmt: skip


@dataclass(frozen=True)
class Minimum:
    """A network and data that it fits exactly: a minimum of objective (2) that is known.

    Attributes:
        mask: ``(inputs,)``, in [0, 1].
        hidden: ``(width, inputs)``.
        decoder: ``(1, width)``.
        inputs: ``(samples, inputs)``.
        labels: ``(1, samples)``.
    """

    mask: np.ndarray
    hidden: np.ndarray
    decoder: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def draw(cls, seed: int, *, n_inputs: int, width: int, samples: int) -> Minimum:
        """Return the minimum of a seed: a random ReLU network that made the labels itself."""
        rng = stream(seed, "exact minimum")
        mask = 0.2 + 0.8 * rng.random(n_inputs)
        hidden = rng.standard_normal((width, n_inputs)) / np.sqrt(n_inputs)
        decoder = rng.standard_normal((1, width)) / np.sqrt(width)
        inputs = rng.standard_normal((samples, n_inputs))
        labels = decoder @ np.maximum((hidden * mask) @ inputs.T, 0.0)
        return cls(mask, hidden, decoder, inputs, labels)

    def network(self, mask_factor: float = 1.0, hidden_factor: float = 1.0) -> Network:
        """Return the rescaled weights."""
        return rescale(self.mask, self.hidden, self.decoder, mask_factor, hidden_factor)

    def hessian(self, mask_factor: float = 1.0, hidden_factor: float = 1.0) -> Hessian:
        """Return the Hessian at the rescaled weights, computed there."""
        arrays = (*self.network(mask_factor, hidden_factor), self.inputs, self.labels)
        return Hessian(*(torch.as_tensor(a) for a in arrays), activation=ReLU(), loss="squared")

    @cached_property
    def dense(self) -> np.ndarray:
        """The Hessian at the start, written out."""
        return self.hessian().dense().numpy()

    def sharpness(self, mask_factor: float, hidden_factor: float) -> float:
        """Return the largest eigenvalue at the rescaled weights, from the Hessian at the start alone."""
        return float(self.eigenvalues(mask_factor, hidden_factor)[-1])

    def eigenvalues(self, mask_factor: float, hidden_factor: float) -> np.ndarray:
        """Return all eigenvalues at the rescaled weights, increasing, from the Hessian at the start alone."""
        scaling = hessian_scaling(len(self.mask), len(self.hidden), mask_factor, hidden_factor)
        return np.linalg.eigvalsh(self.dense * np.outer(scaling, scaling))


def output(network: Network, inputs: np.ndarray, activation: Activation) -> np.ndarray:
    """Return the outputs of a network for these inputs."""
    mask, hidden, decoder = network
    return decoder @ activation.value(torch.as_tensor((hidden * mask) @ inputs.T)).numpy()


def quantities(minimum: Minimum, seed: int) -> np.ndarray:
    """Return all of :data:`QUANTITIES` at one minimum, the worst over the grid of factors."""
    grid = list(product(MASK_FACTORS, HIDDEN_FACTORS))
    start = minimum.dense
    inputs = stream(seed, "fresh inputs").standard_normal((101, len(minimum.mask)))
    rows = [_at(minimum, start, inputs, *factors) for factors in grid]
    worst = {name: max(row[name] for row in rows) for name in rows[0]}
    worst["eigenvalue_over_bound"] = min(row["eigenvalue_over_bound"] for row in rows)
    tops = [minimum.sharpness(factor, 1.0) * factor**2 for factor in (0.01, 0.001)]
    worst |= {"limit_change": abs(tops[1] / tops[0] - 1)}
    worst |= _volume(minimum, seed) | _softplus(minimum, inputs) | _triangle(minimum) | _penalty(minimum)
    worst |= {"gradient_formula_error": _gradient_formula_error(seed)}
    return np.array([worst[name] for name in QUANTITIES])


def claims(measured: np.ndarray) -> dict[str, Measurement]:
    """Return the measurements of quantities ``(seeds, quantities)``, by claim id.

    What a rule calls worst, smallest or largest is so over seeds, too.
    """
    by_name = dict(zip(QUANTITIES, measured.T, strict=True))

    def worst(**names: str) -> Measurement:
        low = {"eigenvalue_over_bound", "volume_gain", "softplus_error", "triangle_area"}
        return Measurement(
            {n: float((np.min if q in low else np.max)(by_name[q])) for n, q in names.items()},
            {n: (float(by_name[q].min()), float(by_name[q].max())) for n, q in names.items()},
            len(measured),
        )

    return {
        "GA-T4-function": worst(max_error="function_error"),
        "GA-T4-stationary": worst(max_gradient="gradient"),
        "GA-T4-volume-factor": worst(max_error="volume_error"),
        "GA-T4-hessian": worst(max_relative_error="hessian_error"),
        "GA-T4-sharp": worst(smallest_eigenvalue_over_bound="eigenvalue_over_bound"),
        "GA-T4-limit": worst(largest_relative_change="limit_change"),
        "GA-T4-volume": worst(max_loss_change="loss_change", smallest_log_volume_gain="volume_gain"),
        "GA-T4-softplus": worst(
            smallest_error_softplus="softplus_error", largest_error_rescaled_softplus="rescaled_softplus_error"
        ),
        "GA-T4-orbit": worst(mismatches="triangle_mismatches", smallest_triangle_area="triangle_area"),
        "GA-G1-l2-sharp": over_seeds(penalty_growth=by_name["penalty_growth"]),
        "GA-G1-l2-escape": over_seeds(
            penalty_ratio=by_name["escape_penalty"], sharpness_ratio=by_name["escape_sharpness"]
        ),
        "GA-D1-gradient": worst(max_relative_error="gradient_formula_error"),
    }


def orbit(
    minimum: Minimum, mask_factors: tuple[float, ...], hidden_factors: tuple[float, ...], points: int
) -> dict[str, np.ndarray]:
    """Return what the slider shows: the function on a line through input space, and all eigenvalues.

    Args:
        minimum: Where the orbit starts.
        mask_factors: Values of the first slider.
        hidden_factors: Values of the second.
        points: Points on the line.

    Returns:
        ``orbit_outputs (mask factors, hidden factors, points)`` and
        ``orbit_eigenvalues (mask factors, hidden factors, parameters)``, largest first.
    """
    shape = (len(mask_factors), len(hidden_factors))
    line = np.linspace(-2, 2, points)[:, None] * stream(0, "line").standard_normal(len(minimum.mask))
    line += stream(0, "line offset").standard_normal(len(minimum.mask)) / 2
    outputs = np.empty((*shape, points))
    eigenvalues = np.empty((*shape, minimum.hessian().size))
    for i, j in np.ndindex(shape):
        factors = mask_factors[i], hidden_factors[j]
        outputs[i, j] = output(minimum.network(*factors), line, ReLU())[0]
        eigenvalues[i, j] = minimum.eigenvalues(*factors)[::-1]
    return {"orbit_outputs": outputs, "orbit_eigenvalues": eigenvalues}


def orbit_map(minimum: Minimum, points: int) -> dict[str, np.ndarray]:
    """Return the largest eigenvalue over the orbit, and the part of it that the assumptions allow.

    Args:
        minimum: Where the orbit starts.
        points: Points per axis, evenly spaced in the logarithms of the factors over :data:`MAP_RANGE`.

    Returns:
        ``sharpness_map (points, points)``, mask factor first; ``least_penalty (points,)`` and ``triangle (3, 2)``
        in natural logarithms.
    """
    factors = np.exp(np.linspace(*MAP_RANGE, points))
    top = np.array([[minimum.sharpness(a, b) for b in factors] for a in factors])
    least = np.log([least_penalty_factor(minimum.hidden, minimum.decoder, factor) for factor in factors])
    return {"sharpness_map": top, "least_penalty": least, "triangle": _allowed(minimum)}


def _bounds(minimum: Minimum) -> tuple[float, float]:
    """The bounds of assumption A2 that leave some room."""
    return ROOM * float(np.linalg.norm(minimum.hidden)), ROOM * float(np.linalg.norm(minimum.decoder))


def _allowed(minimum: Minimum) -> np.ndarray:
    c_hidden, c_decoder = _bounds(minimum)
    return allowed_triangle(*minimum.network(), c_hidden=c_hidden, c_decoder=c_decoder)


def _at(
    minimum: Minimum, start: np.ndarray, inputs: np.ndarray, mask_factor: float, hidden_factor: float
) -> dict[str, float]:
    """The theorem's identities at one point of the orbit."""
    p, d = len(minimum.mask), len(minimum.hidden)
    before, after = (output(minimum.network(*f), inputs, ReLU()) for f in ((1.0, 1.0), (mask_factor, hidden_factor)))
    there = minimum.hessian(mask_factor, hidden_factor)
    dense = there.dense().numpy()
    scaling = hessian_scaling(p, d, mask_factor, hidden_factor)
    volume = _log_volume(p, d, mask_factor, hidden_factor)
    delta = start.diagonal()[:p].max()
    return {
        "function_error": float(np.abs(after - before).max()),
        "gradient": float(there.gradient.abs().max()),
        "volume_error": float(abs(volume - log_volume_factor(p, d, mask_factor, hidden_factor))),
        "hessian_error": float(np.abs(dense - start * np.outer(scaling, scaling)).max() / np.abs(dense).max()),
        "eigenvalue_over_bound": float(np.linalg.eigvalsh(dense)[-1] * mask_factor**2 / delta),
    }


def _parts(vector: np.ndarray, n_inputs: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A vector of parameters as mask, first and second layer."""
    mask, hidden, decoder = np.split(vector, [n_inputs, n_inputs * (width + 1)])
    return mask, hidden.reshape(width, n_inputs), decoder[None]


def _flat(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


def _log_volume(n_inputs: int, width: int, mask_factor: float, hidden_factor: float) -> float:
    """Logarithm of the determinant of the map: it is linear, its matrix has the images of unit vectors as columns."""
    units = np.eye(n_inputs + n_inputs * width + width)
    images = [_flat(*rescale(*_parts(unit, n_inputs, width), mask_factor, hidden_factor)) for unit in units]
    return float(np.linalg.slogdet(np.array(images))[1])


def _volume(minimum: Minimum, seed: int) -> dict[str, float]:
    """A neighbourhood of the minimum keeps its losses and gains volume without bound as the first layer grows."""
    rng, factor = stream(seed, "neighbours"), 1000.0
    changes = []
    for _ in range(20):
        near = [a + 0.01 * rng.standard_normal(a.shape) for a in minimum.network()]
        losses = [
            np.square(output(network, minimum.inputs, ReLU()) - minimum.labels).mean() / 2
            for network in ((near[0], near[1], near[2]), rescale(near[0], near[1], near[2], 1.0, factor))
        ]
        changes.append(abs(losses[1] - losses[0]))
    gain = _log_volume(len(minimum.mask), len(minimum.hidden), 1.0, factor)
    return {"loss_change": float(max(changes)), "volume_gain": gain}


def _softplus(minimum: Minimum, inputs: np.ndarray) -> dict[str, float]:
    tau, factors = 10.0, (0.1, 1.0)
    before = output(minimum.network(), inputs, Softplus(tau))
    after = [
        output(minimum.network(*factors), inputs, Softplus(sharpness))
        for sharpness in (tau, rescaled_sharpness(tau, *factors))
    ]
    errors = [float(np.abs(each - before).max()) for each in after]
    return {"softplus_error": errors[0], "rescaled_softplus_error": errors[1]}


def _triangle(minimum: Minimum) -> dict[str, float]:
    """Points of the orbit that satisfy the assumptions against points inside the triangle."""
    c_hidden, c_decoder = _bounds(minimum)
    corners = _allowed(minimum)
    sides = np.roll(corners, -1, axis=0) - corners
    area = abs(np.cross(np.append(sides[0], 0.0), np.append(sides[1], 0.0))[2]) / 2
    orientation = np.sign(sides[0][0] * sides[1][1] - sides[0][1] * sides[1][0])
    wrong = 0
    for logs in product(np.linspace(-4.03, 4.01, 41), repeat=2):
        mask, hidden, decoder = minimum.network(*np.exp(logs))
        allowed = mask.max() <= 1 and np.linalg.norm(hidden) <= c_hidden and np.linalg.norm(decoder) <= c_decoder
        to = np.array(logs) - corners
        inside = (orientation * (sides[:, 0] * to[:, 1] - sides[:, 1] * to[:, 0]) >= 0).all()
        wrong += bool(allowed) != bool(inside)
    return {"triangle_mismatches": float(wrong), "triangle_area": float(area)}


def _penalty(minimum: Minimum) -> dict[str, float]:
    """The least L2 penalty of both layers for a shrunken, an unchanged and a grown mask."""
    penalties, tops = {}, {}
    for factor in (0.01, 1.0, 100.0):
        hidden_factor = least_penalty_factor(minimum.hidden, minimum.decoder, factor)
        _, hidden, decoder = minimum.network(factor, hidden_factor)
        penalties[factor] = float(np.square(hidden).sum() + np.square(decoder).sum())
        tops[factor] = minimum.sharpness(factor, hidden_factor)
    return {
        "penalty_growth": penalties[0.01] / penalties[1.0],
        "escape_penalty": penalties[100.0] / penalties[1.0],
        "escape_sharpness": tops[100.0] / tops[1.0],
    }


def _gradient_formula_error(seed: int) -> float:
    """Closed-form gradient of objective (2) against automatic differentiation, away from a minimum."""
    rng = stream(seed, "gradient")
    shapes = {"mask": (1, 7), "hidden": (1, 5, 7), "decoder": (1, 1, 5)}
    parameters = {name: torch.as_tensor(rng.standard_normal(shape)) for name, shape in shapes.items()}
    inputs, labels = (torch.as_tensor(rng.standard_normal(shape)) for shape in ((1, 23, 7), (1, 1, 23)))
    _, closed = loss_and_gradient(parameters, (inputs, labels), activation=Softplus(), loss="squared")

    def loss(mask: Tensor, hidden: Tensor, decoder: Tensor) -> Tensor:
        outputs = decoder[0] @ Softplus().value(hidden[0] @ (inputs[0] * mask[0]).T)
        return (outputs - labels[0]).square().mean() / 2

    leaves = [tensor.clone().requires_grad_() for tensor in parameters.values()]
    automatic = torch.autograd.grad(loss(*leaves), leaves)
    errors = [(a - closed[name]).abs().max() / a.abs().max() for name, a in zip(shapes, automatic, strict=True)]
    return float(max(errors))
