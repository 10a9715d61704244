r"""What Theorem 4.2 and Lemma 5.3 ask for and promise, as plain functions.

=============================  ==========================  ====================================================
paper                          name here                   meaning
=============================  ==========================  ====================================================
$n$, $d$                       ``n_samples``, ...          samples, outputs
$m$                            ``width``                   neurons, in pairs
$\eta$                         ``step_size``               step size of gradient descent
$\lambda$                      ``smallest_eigenvalue``     smallest eigenvalue of $H^*$, assumed positive
$B$                            ``exponent``                bounds every $|\langle w_r, x_i\rangle|$; at least 1
$\epsilon$, $\delta$           ``error``, ``failure``      squared error asked for; probability of failure
$\|F(0)-Y\|_F$                 ``residual``                at the start
$D$                            ``movement_bound``          bound on $\|w_r(t) - w_r(0)\|$
=============================  ==========================  ====================================================

In the text available to us the equations are missing. Every formula of the theorem and the lemma is our
reconstruction; the powers of $e^B$ are recalled, and constants the paper hides are taken as 1. Where $B$ has a default
it is 1, the smallest value that the definition allows. All functions raise ValueError for numbers outside their range,
and name them.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.kernels import Activation, check_activation
from attnbook.softmax_ntk.stability_bounds import check_exponent, check_failure

__all__ = [
    "loss_envelope", "movement_bound", "row_of_table_1", "step_size_of_theorem", "steps_of_theorem", "width_of_theorem"
]  # fmt: skip


def width_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, exponent: float = 1.0, failure: float = 0.1
) -> float:
    r"""Return the width of Theorem 4.2, $m = \lambda^{-2}n^2d^2e^{18B}\log^2(nd/\delta)$ (reconstructed).

    Example:
        >>> f"{width_of_theorem(0.5, n_samples=16, n_outputs=1):.0e}"
        '2e+12'
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    check_failure(failure)
    nd = n_samples * n_outputs
    return float((nd / smallest_eigenvalue) ** 2 * np.exp(18 * exponent) * np.log(nd / failure) ** 2)


def step_size_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, width: int, exponent: float = 1.0
) -> float:
    r"""Return the step size of Theorem 4.2, $\eta = 0.1\lambda/(mn^2d^2e^{16B})$ (reconstructed)."""
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    check_positive(width=width)
    return float(0.1 * smallest_eigenvalue / (width * (n_samples * n_outputs) ** 2 * np.exp(16 * exponent)))


def steps_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, error: float, exponent: float = 1.0
) -> float:
    r"""Return Theorem 4.2's number of steps, $\hat T = \lambda^{-2}n^2d^2e^{16B}\log(nd/\epsilon)$ (reconstructed).

    Raises:
        ValueError: If the error is not below $nd$, or a number outside its range.
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    nd = n_samples * n_outputs
    if not 0 < error < nd:
        raise ValueError(f"error: expected a positive number below n_samples * n_outputs = {nd}, got {error}")
    return float((nd / smallest_eigenvalue) ** 2 * np.exp(16 * exponent) * np.log(nd / error))


def row_of_table_1(
    activation: Activation, smallest_eigenvalue: float, *, n_samples: int, error: float
) -> tuple[float, float]:
    r"""Return width and number of steps in a network's row of Table 1 (reconstructed), read as charitably as possible.

    $\lambda^{-2}n^2\log n$ for ReLU and $\lambda^{-2}n^{2+o(1)}\log^2n$ for softmax and exp; steps
    $\lambda^{-2}n^2\log(n/\epsilon)$ and $\lambda^{-2}n^{2+o(1)}\log(n/\epsilon)$, with $\lambda$ of this network's own
    kernel. Hidden constants are 1 and $o(1)$ is 0, although it stands for powers of $e^B$.

    Raises:
        ValueError: If $n$ is below 2, the error not below $n$, or a number outside its range.
    """
    check_activation(activation)
    check_positive(smallest_eigenvalue=smallest_eigenvalue)
    if n_samples < 2 or not 0 < error < n_samples:
        raise ValueError(f"n_samples, error: expected at least 2 and a positive number below, got {n_samples}, {error}")
    square, log = (n_samples / smallest_eigenvalue) ** 2, np.log(n_samples)
    return float(square * (log if activation == "relu" else log**2)), float(square * np.log(n_samples / error))


def loss_envelope(
    steps: Float[np.ndarray, " records"], *, smallest_eigenvalue: float, step_size: float, width: int
) -> Float[np.ndarray, " records"]:
    r"""Return Lemma 5.3's envelope of the loss over its first value after $t$ steps, $(1 - m\eta\lambda/2)^t$.

    Raises:
        ValueError: If $m\eta\lambda$ is not below 2, or a number outside its range.

    Example:
        >>> loss_envelope(np.array([0.0, 2.0]), smallest_eigenvalue=0.5, step_size=0.1, width=4).tolist()
        [1.0, 0.81]
    """
    check_positive(smallest_eigenvalue=smallest_eigenvalue, step_size=step_size, width=width)
    rate = width * step_size * smallest_eigenvalue / 2
    if rate >= 1:
        raise ValueError(f"step_size: the envelope needs width * step_size * eigenvalue below 2, got {2 * rate:g}")
    return (1 - rate) ** np.asarray(steps, dtype=np.float64)


def movement_bound(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, width: int, exponent: float, residual: float
) -> float:
    r"""Return Lemma 5.3's bound on the movement of a neuron, $D = 8\lambda^{-1}e^{3B}\sqrt{nd}\,\|F(0)-Y\|_F/m$.

    The form is our derivation, from Lemma D.1 and a geometric sum; the paper's powers of $e^B$ and $d$ may differ.
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    check_positive(width=width, residual=residual)
    return float(8 / smallest_eigenvalue * np.exp(3 * exponent) * np.sqrt(n_samples * n_outputs) * residual / width)


def _check_theorem(smallest_eigenvalue: float, n_samples: int, n_outputs: int, exponent: float) -> None:
    check_positive(smallest_eigenvalue=smallest_eigenvalue, n_samples=n_samples, n_outputs=n_outputs)
    check_exponent(exponent)
