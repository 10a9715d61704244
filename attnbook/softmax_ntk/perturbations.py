r"""Directions in which all neurons of a network move at once, each by at most a radius $R$.

============  ================================================================================================
``random``    every neuron in a random direction of its own
``shared``    all neurons by the same vector
``opposite``  the two neurons of a pair in opposite directions, as the first step of gradient descent moves them
``spread``    along one axis, each neuron away from the middle: $\mathrm{sign}(\langle w_r,u\rangle)\,u$
``inward``    every neuron towards the origin, and no farther
``gradient``  as the first step of gradient descent moves them, the farthest by $R$; :func:`displaced` only
============  ================================================================================================

The directions are this book's; Lemma 5.1 allows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.softmax_ntk.two_layer import Inputs, Labels, Networks, loss_and_gradient

__all__ = ["DIRECTIONS", "Direction", "displaced", "displacement"]

Direction: TypeAlias = Literal["random", "shared", "opposite", "spread", "inward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def displacement(
    direction: Direction, first_layer: Float[np.ndarray, "inputs width"], radius: float, *, rng: np.random.Generator
) -> Float[np.ndarray, "inputs width"]:
    r"""Return by what each neuron of a network moves.

    The same generator gives the same direction at every radius.

    Args:
        direction: One of those above.
        first_layer: Weights, one column per neuron.
        radius: How far each neuron moves, $R$; ``inward`` ends at the origin.
        rng: Source of randomness.

    Returns:
        One column per neuron.

    Raises:
        ValueError: If the direction is unknown, the radius negative or not finite, or the width odd for ``opposite``.

    Example:
        >>> move = displacement("opposite", np.ones((3, 4)), 0.5, rng=np.random.default_rng(0))
        >>> bool(np.allclose(move[:, ::2] + move[:, 1::2], 0)), float(np.linalg.norm(move[:, 0]).round(9))
        (True, 0.5)
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction: expected one of {', '.join(DIRECTIONS)}, got {direction!r}")
    if not 0 <= radius < float("inf"):
        raise ValueError(f"radius: expected a number of at least 0, got {radius}")
    n_inputs, width = first_layer.shape
    if direction == "inward":
        lengths = np.linalg.norm(first_layer, axis=0)
        return -first_layer * np.minimum(radius / np.maximum(lengths, np.finfo(float).tiny), 1.0)
    if direction == "opposite" and width % 2:
        raise ValueError(f"direction: expected an even width for pairs, got {width}")
    drawn = rng.standard_normal((n_inputs, {"random": width, "opposite": width // 2}.get(direction, 1)))
    drawn *= radius / np.linalg.norm(drawn, axis=0)
    if direction == "opposite":
        return np.stack([drawn, -drawn], axis=2).reshape(n_inputs, width)
    if direction == "spread":
        return drawn * np.where(drawn.T @ first_layer >= 0, 1.0, -1.0)
    return np.broadcast_to(drawn, (n_inputs, width)).copy()


def displaced(
    networks: Networks,
    direction: Direction | Literal["gradient"],
    radius: float,
    *,
    seeds: Sequence[int],
    sample: tuple[Inputs, Labels] | None = None,
) -> Networks:
    """Return networks whose neurons have moved, in a direction that depends on the seed of each and on the width only.

    A seed moves in the same direction at every radius, and networks of other activations with the same weights alike,
    but for ``gradient``.

    Args:
        networks: What is to be moved.
        direction: As for :func:`displacement`, or ``gradient``.
        radius: How far each neuron moves, or the farthest.
        seeds: One for each network.
        sample: For ``gradient``, inputs of each network and labels to fit.

    Returns:
        The networks after the move.

    Raises:
        ValueError: As :func:`displacement`, or if there is not one seed per network, or no sample for ``gradient``.
    """
    weights = networks.first_layer
    if len(seeds) != len(weights):
        raise ValueError(f"seeds: expected one per network, {len(weights)}, got {len(seeds)}")
    if direction == "gradient":
        if sample is None:
            raise ValueError("sample: expected inputs and labels for the direction 'gradient', got none")
        step = loss_and_gradient(networks, *sample)[1]
        return replace(networks, first_layer=weights - step * (radius / step.norm(dim=1).amax(1))[:, None, None])
    moves = [
        displacement(direction, before, radius, rng=stream(seed, "direction", direction, networks.width))
        for seed, before in zip(seeds, weights.cpu().double().numpy(), strict=True)
    ]
    return replace(networks, first_layer=weights + weights.new_tensor(np.stack(moves)))
