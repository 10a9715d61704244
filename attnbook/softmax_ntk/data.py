r"""The data of the convergence theorems: inputs and labels of norm at most one.

===============  ====================  =======================================
paper            name here             shape
===============  ====================  =======================================
$x_i$            ``inputs``            ``(samples, inputs)``, norm at most 1
$y_i$            ``labels``            ``(outputs, samples)``, norm at most 1
===============  ====================  =======================================

The paper asks for bounded norms only; which data it has in mind is left open. Here inputs and labels are independent
and uniform on unit spheres: there is nothing to learn but the sample itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.core.settings import check_positive

__all__ = ["Sample", "draw_sample", "sphere"]


class Sample(NamedTuple):
    """A training set.

    Attributes:
        inputs: One row per sample, ``(samples, inputs)``.
        labels: One column per sample, as the network returns its outputs, ``(outputs, samples)``.
    """

    inputs: Float[np.ndarray, "samples inputs"]
    labels: Float[np.ndarray, "outputs samples"]


def sphere(count: int, dimension: int, *, rng: np.random.Generator) -> Float[np.ndarray, "count dimension"]:
    """Return points drawn uniformly on the unit sphere, one per row; in dimension 1 they are 1 and -1.

    Args:
        count: How many.
        dimension: Of how many entries.
        rng: Source of randomness.

    Returns:
        The points.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> points = sphere(3, 5, rng=np.random.default_rng(0))
        >>> bool(np.allclose(np.linalg.norm(points, axis=1), 1))
        True
    """
    check_positive(count=count, dimension=dimension)
    points = rng.standard_normal((count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def draw_sample(n_samples: int, n_inputs: int, n_outputs: int, *, seed: int) -> Sample:
    """Return $n$ samples of $d_{in}$ inputs and $d$ outputs; sets of other sizes have no numbers in common.

    Inputs and labels are independent and uniform on unit spheres.

    Args:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        seed: Seed.

    Returns:
        The samples.
    """
    sizes = (n_samples, n_inputs, n_outputs)
    inputs = sphere(n_samples, n_inputs, rng=stream(seed, "inputs", *sizes))
    return Sample(inputs, sphere(n_samples, n_outputs, rng=stream(seed, "labels", *sizes)).T.copy())
