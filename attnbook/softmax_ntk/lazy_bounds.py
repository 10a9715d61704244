r"""What Theorem 4.2 and Lemma 5.3 require and promise.

=============================  ==========================  ====================================================
paper                          name here                   meaning
=============================  ==========================  ====================================================
$n$, $d$                       ``n_samples``, ...          samples, outputs
$m$                            ``width``                   neurons, in pairs
$\lambda$                      ``smallest_eigenvalue``     smallest eigenvalue of $H^*$, assumed positive
$B$                            ``exponent``                bounds every $|\langle w_r, x_i\rangle|$; at least 1
$\epsilon$, $\delta$           ``error``, ``failure``      squared error wanted; probability of failure
$\|F(0)-Y\|_F$                 ``residual``                at the start
=============================  ==========================  ====================================================

In the text available to us the equations are missing. Every formula of the theorem and the lemma is our
reconstruction; the powers of $e^B$ are recalled, and constants that the paper hides are 1 where nothing else is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Real

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.stability_bounds import check_exponent, check_failure

__all__ = ["Theorem", "digits_until_small", "loss_envelope"]


@dataclass(frozen=True)
class Theorem:
    r"""Theorem 4.2 for one training set (reconstructed).

    Attributes:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$; default 1.
        exponent: $B$; default 1, the smallest value that the definition allows.
        failure: $\delta$; default 0.1.

    Raises:
        ValueError: If a number is outside its range; names it.

    Example:
        >>> f"{Theorem(0.5, n_samples=16).width():.0e}"
        '2e+12'
    """

    smallest_eigenvalue: float
    n_samples: int
    n_outputs: int = 1
    exponent: float = 1.0
    failure: float = 0.1

    def __post_init__(self) -> None:
        sizes = {"n_samples": self.n_samples, "n_outputs": self.n_outputs}
        check_positive(smallest_eigenvalue=self.smallest_eigenvalue, **sizes)
        check_exponent(self.exponent)
        check_failure(self.failure)

    @property
    def rows(self) -> int:
        """Rows of the kernel, $nd$."""
        return self.n_samples * self.n_outputs

    def width(self) -> float:
        r"""Return $m = \lambda^{-2}n^2d^2e^{18B}\log^2(nd/\delta)$."""
        return float(self._square(18) * np.log(self.rows / self.failure) ** 2)

    def scaled_step_size(self) -> float:
        r"""Return $\eta m = 0.1\lambda/(n^2d^2e^{16B})$, the step size times the width."""
        return float(0.1 / (self.smallest_eigenvalue * self._square(16)))

    def steps(self, error: float) -> float:
        r"""Return the steps after which the envelope of Lemma 5.3 is at $\epsilon$ if it starts at $nd$.

        Since $\log\frac1{1-x}\ge x$, it suffices that $\hat Tm\eta\lambda/2\ge\log(nd/\epsilon)$, so that
        $\hat T = \frac2{0.1}\lambda^{-2}n^2d^2e^{16B}\log(nd/\epsilon)$. The theorem hides the factor 20.

        Raises:
            ValueError: If the error is not below $nd$.
        """
        if not 0 < error < self.rows:
            raise ValueError(
                f"error: expected a positive number below n_samples * n_outputs = {self.rows}, got {error}"
            )
        return float(20 * self._square(16) * np.log(self.rows / error))

    def movement(self, width: int, residual: float) -> float:
        r"""Return Lemma 5.3's bound on the movement of a neuron, $8\lambda^{-1}e^{3B}\sqrt{nd}\,\|F(0)-Y\|_F/m$.

        The form is our derivation, from Lemma D.1 and a geometric sum; the paper's powers may differ.
        """
        check_positive(width=width, residual=residual)
        return float(8 / self.smallest_eigenvalue * np.exp(3 * self.exponent) * self.rows**0.5 * residual / width)

    def _square(self, power: int) -> float:
        return float((self.rows / self.smallest_eigenvalue) ** 2 * np.exp(power * self.exponent))


def loss_envelope(steps: Real[np.ndarray, " records"], *, rate: float) -> Float[np.ndarray, " records"]:
    r"""Return Lemma 5.3's envelope of the loss over its first value after $t$ steps, $(1 - m\eta\lambda/2)^t$.

    Args:
        steps: Numbers of steps.
        rate: $m\eta\lambda$, above 0 and below 2.

    Raises:
        ValueError: If the rate is outside its range.

    Example:
        >>> loss_envelope(np.array([0.0, 2.0]), rate=0.2).tolist()
        [1.0, 0.81]
    """
    if not 0 < rate < 2:
        raise ValueError(f"rate: expected a number above 0 and below 2, got {rate:g}")
    return (1 - rate / 2) ** np.asarray(steps, dtype=np.float64)


def digits_until_small(constant: float, *, scale: float = 1.0, failure: float = 0.1) -> float:
    r"""Return $\log_{10}$ of the number of samples from which on the factor $e^{18B}$ of the width is below $n$.

    That the factor is $n^{o(1)}$ is how the paper simplifies its theorem. With $B = C\sigma\sqrt{\log(n/\delta)}$
    (Definition 4.1, one output) and $k = (18C\sigma)^2$ it is below $n$ once
    $\log n\ge\frac12(k+\sqrt{k^2+4k\log(1/\delta)})$.

    Args:
        constant: $C$, positive; the paper says only that it is large.
        scale: $\sigma$, positive; default 1.
        failure: $\delta$; default 0.1.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> round(digits_until_small(2.0))
        564
    """
    check_positive(constant=constant, scale=scale)
    check_failure(failure)
    k = (18 * constant * scale) ** 2
    return float((k + np.sqrt(k**2 - 4 * k * np.log(failure))) / 2 / np.log(10))
