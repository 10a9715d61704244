r"""What Theorem 4.2 and Lemma 5.3 ask for and promise, as plain functions.

=============================  ==========================  ====================================================
paper                          name here                   meaning
=============================  ==========================  ====================================================
$n$, $d$, $d_{in}$             ``n_samples``, ...          samples, outputs, inputs
$m$                            ``width``                   neurons, in pairs
$w_r$                          ``first_layer``             trained weights of neuron $r$, ``(inputs, width)``
$a_{\ell r}$                   ``signs``                   frozen signs, ``(outputs, width)``
$\sigma$                       ``scale``                   standard deviation of the initial weights
$\eta$                         ``step_size``               step size of gradient descent
$H(W)$, $H^*$                  ``kernel``                  $\frac1mJJ^\top$ now and at the start, output-major
$\lambda$                      ``smallest_eigenvalue``     smallest eigenvalue of $H^*$, assumed positive
$B$                            ``exponent``                bounds every $|\langle w_r, x_i\rangle|$; at least 1
$\epsilon$, $\delta$           ``error``, ``failure``      squared error asked for; probability of failure
$D$                            ``movement``                bound on $\|w_r(t) - w_r(0)\|$
=============================  ==========================  ====================================================

In the text available to us the equations are missing. Every formula of the theorem and the lemma is our
reconstruction; the powers of $e^B$ are recalled, and constants the paper hides are taken as 1.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.softmax_ntk.kernels import Activation, check_activation, check_positive

__all__ = [
    "loss_envelope",
    "movement_bound",
    "row_of_table_1",
    "step_size_of_theorem",
    "steps_of_theorem",
    "width_of_theorem",
]


def width_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, exponent: float = 1.0, failure: float = 0.1
) -> float:
    r"""Return the width of Theorem 4.2, $m = \lambda^{-2}n^2d^2e^{18B}\log^2(nd/\delta)$ (reconstructed).

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$.
        exponent: $B$, at least 1; default 1, the smallest value that the paper's definition allows.
        failure: $\delta$ in (0, 1); default 0.1, the largest the theorem speaks of.

    Returns:
        The width, without the hidden constant.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> f"{width_of_theorem(0.5, n_samples=16, n_outputs=1):.0e}"
        '2e+12'
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    if not 0 < failure < 1:
        raise ValueError(f"failure: expected a probability between 0 and 1, got {failure}")
    nd = n_samples * n_outputs
    return float((nd / smallest_eigenvalue) ** 2 * np.exp(18 * exponent) * np.log(nd / failure) ** 2)


def step_size_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, width: int, exponent: float = 1.0
) -> float:
    r"""Return the step size of Theorem 4.2, $\eta = 0.1\lambda/(mn^2d^2e^{16B})$ (reconstructed).

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$.
        width: $m$.
        exponent: $B$, at least 1; default 1, the smallest value that the paper's definition allows.

    Returns:
        The step size.

    Raises:
        ValueError: If an argument is outside its range.
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    check_positive(width=width)
    return float(0.1 * smallest_eigenvalue / (width * (n_samples * n_outputs) ** 2 * np.exp(16 * exponent)))


def steps_of_theorem(
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, error: float, exponent: float = 1.0
) -> float:
    r"""Return Theorem 4.2's number of steps, $\hat T = \lambda^{-2}n^2d^2e^{16B}\log(nd/\epsilon)$ (reconstructed).

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$.
        error: Squared error $\epsilon$ to reach, positive and below $nd$.
        exponent: $B$, at least 1; default 1, the smallest value that the paper's definition allows.

    Returns:
        The number of steps, without the hidden constant.

    Raises:
        ValueError: If an argument is outside its range.
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
    $\lambda^{-2}n^2\log(n/\epsilon)$ and $\lambda^{-2}n^{2+o(1)}\log(n/\epsilon)$. Hidden constants are 1 and $o(1)$ is
    0, although it stands for powers of $e^B$.

    Args:
        activation: Which row.
        smallest_eigenvalue: $\lambda$ of this network's own kernel, positive.
        n_samples: $n$, at least 2.
        error: Squared error $\epsilon$ to reach, positive and below $n$.

    Returns:
        Width and number of steps.

    Raises:
        ValueError: If an argument is outside its range.
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
    r"""Return Lemma 5.3's envelope of the loss over its first value, $(1 - m\eta\lambda/2)^t$ (reconstructed).

    Args:
        steps: Numbers of steps $t$.
        smallest_eigenvalue: $\lambda$, positive.
        step_size: $\eta$, with $m\eta\lambda < 2$.
        width: $m$.

    Returns:
        The envelope.

    Raises:
        ValueError: If an argument is outside its range.

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

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$.
        width: $m$.
        exponent: $B$, here the largest $|\\langle w_r, x_i\\rangle|$ and at least 1.
        residual: $\|F(0)-Y\|_F$, positive.

    Returns:
        The bound.

    Raises:
        ValueError: If an argument is outside its range.
    """
    _check_theorem(smallest_eigenvalue, n_samples, n_outputs, exponent)
    check_positive(width=width, residual=residual)
    return float(8 / smallest_eigenvalue * np.exp(3 * exponent) * np.sqrt(n_samples * n_outputs) * residual / width)


def _check_theorem(smallest_eigenvalue: float, n_samples: int, n_outputs: int, exponent: float) -> None:
    check_positive(smallest_eigenvalue=smallest_eigenvalue, n_samples=n_samples, n_outputs=n_outputs)
    if not 1 <= exponent < float("inf"):
        raise ValueError(f"exponent: B is at least 1 by its definition, got {exponent}")
