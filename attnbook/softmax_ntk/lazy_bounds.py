r"""What Theorem 4.2 requires, and from how many samples on its simplification says something.

In the text available to us the equations are missing. Every formula is our reconstruction; the powers of $e^B$ are
recalled, and constants that the paper hides are 1 where nothing else is said.
"""

from __future__ import annotations

import numpy as np

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.stability_bounds import check_exponent, check_failure

__all__ = ["digits_until_small", "required"]


def required(
    smallest_eigenvalue: float,
    n_samples: int,
    n_outputs: int = 1,
    *,
    error: float,
    exponent: float = 1.0,
    failure: float = 0.1,
) -> tuple[float, float, float]:
    r"""Return width, width times step size, and number of steps of Theorem 4.2 (reconstructed).

    $m=\lambda^{-2}n^2d^2e^{18B}\log^2(nd/\delta)$, $m\eta=0.1\lambda/(n^2d^2e^{16B})$ and
    $\hat T=\frac2{0.1}\lambda^{-2}n^2d^2e^{16B}\log(nd/\epsilon)$. The theorem hides the factor 20. With it the bound
    of Lemma 5.3, $(1-m\eta\lambda/2)^t$ times the first squared error, is at $\epsilon$ if it starts at $nd$: since
    $\log\frac1{1-x}\ge x$, it suffices that $\hat Tm\eta\lambda/2\ge\log(nd/\epsilon)$.

    Args:
        smallest_eigenvalue: $\lambda$ of the kernel at the start, positive.
        n_samples: $n$.
        n_outputs: $d$; default 1.
        error: Squared error $\epsilon$ that is wanted, below $nd$.
        exponent: $B$, which bounds every $|\langle w_r,x_i\rangle|$ at the start; default 1, the smallest value that
            its definition allows.
        failure: Probability $\delta$ of failure; default 0.1.

    Returns:
        The three numbers.

    Raises:
        ValueError: If a number is outside its range; names it.

    Example:
        >>> [f"{number:.0e}" for number in required(0.5, 16, error=0.016)]
        ['2e+12', '2e-11', '1e+12']
    """
    check_positive(smallest_eigenvalue=smallest_eigenvalue, n_samples=n_samples, n_outputs=n_outputs)
    check_exponent(exponent)
    check_failure(failure)
    rows = n_samples * n_outputs
    if not 0 < error < rows:
        raise ValueError(f"error: expected a positive number below n_samples * n_outputs = {rows}, got {error}")
    square, growth = (rows / smallest_eigenvalue) ** 2, np.exp(2 * exponent)
    steps = 20 * square * growth**8 * np.log(rows / error)
    width = square * growth**9 * np.log(rows / failure) ** 2
    return float(width), float(0.1 * smallest_eigenvalue / rows**2 / growth**8), float(steps)


def digits_until_small(constant: float, *, failure: float = 0.1) -> float:
    r"""Return $\log_{10}$ of the number of samples from which on the factor $e^{18B}$ of the width is below $n$.

    That the factor is $n^{o(1)}$ is how the paper simplifies its theorem. With $B = C\sqrt{\log(n/\delta)}$
    (Definition 4.1, one output, standard normal weights) and $k = (18C)^2$ it is below $n$ once
    $\log n\ge\frac12(k+\sqrt{k^2+4k\log(1/\delta)})$.

    Args:
        constant: $C$, positive; the paper says only that it is large.
        failure: $\delta$; default 0.1.

    Returns:
        The number of digits.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> round(digits_until_small(2.0))
        564
    """
    check_positive(constant=constant)
    check_failure(failure)
    k = (18 * constant) ** 2
    return float((k + np.sqrt(k**2 - 4 * k * np.log(failure))) / 2 / np.log(10))
