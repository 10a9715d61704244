r"""How fast the direction settles and the norm grows: Lemmas 29 and 30 as functions.

The proof bounds $D_k\,N_k^{p-1}$ by $1+\int^{N_k}\frac{\log r}r\,d(r^{p-1})$, where $N_k=\|W(k)\|_{p,p}$; the three
cases of the theorem are the three cases of this integral. Constants are left out: the text available to us has none.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import check_exponents

__all__ = ["bound", "bound_exponent", "log_log_slope", "radial_law"]


def bound(norm: Float[np.ndarray, "*batch"], p: float) -> Float[np.ndarray, "*batch"]:
    r"""Return the rate of Lemma 29 without its constant.

    $\log N/N$ for $p>2$, $(\log N)^2/N$ for $p=2$, $N^{-(p-1)}$ for $p<2$. With $\log k$ in place of $N$ it is the rate
    in the number of steps.

    Args:
        norm: $N$, above 1.
        p: One exponent above 1.

    Returns:
        The rate, up to a constant.

    Raises:
        ValueError: If the exponent is not a finite number above 1, or a norm is not above 1.

    Example:
        >>> float(bound(np.array(16.0), 1.5))
        0.25
    """
    check_exponents(p)
    if not (np.asarray(norm) > 1).all():
        raise ValueError(f"norm: expected numbers above 1, got {np.min(norm)}")
    if p < 2:
        return np.asarray(norm ** (1 - p))
    return np.asarray(np.log(norm) ** (2 if p == 2 else 1) / norm)


def bound_exponent(p: float) -> float:
    r"""Return $\min(1,p-1)$: the power of $1/N$ in the rate, logarithms left out.

    Args:
        p: One exponent above 1.

    Returns:
        The power, at most 1.

    Raises:
        ValueError: If the exponent is not a finite number above 1.
    """
    return min(1.0, float(check_exponents(p)) - 1)


def log_log_slope(
    x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"], *, beyond: float = 0.0
) -> tuple[float, float]:
    """Return the slope of a straight-line fit on log axes, and the share of the variance that it explains.

    Args:
        x: Positive abscissae.
        y: Positive ordinates.
        beyond: Only points with ``x`` above this count; default all.

    Returns:
        Slope, and R squared.

    Raises:
        ValueError: If fewer than two points count.

    Example:
        >>> slope, share = log_log_slope(np.array([1.0, 2.0, 4.0]), np.array([3.0, 12.0, 48.0]))
        >>> round(slope, 9), round(share, 9)
        (2.0, 1.0)
    """
    far = np.asarray(x) > beyond
    if far.sum() < 2:
        raise ValueError(f"x: expected at least two points beyond {beyond:g}, got {int(far.sum())}")
    across, up = np.log(x[far]), np.log(y[far])
    slope, height = np.polyfit(across, up, 1)
    left = np.square(up - slope * across - height).sum()
    return float(slope), float(1 - left / np.square(up - up.mean()).sum())


def radial_law(log_time: Float[np.ndarray, " points"], p: float) -> Float[np.ndarray, " points"]:
    r"""Return the relative norm of a run that points to $W_{mm}$ all the time (this book's heuristic).

    Then $\frac{d}{dt}\rho^{p-1}=e^{-\rho}$, up to constants; so the slope of $\rho$ against $\log t$ tends to 1, while
    $\rho/\log t$ is away from 1 by about $(2-p)\log\log t/\log t$.

    Args:
        log_time: Logarithms of the accumulated step size, increasing and positive.
        p: One exponent above 1.

    Returns:
        Relative norms, from 0 at time 0 on.

    Raises:
        ValueError: If the exponent is not a finite number above 1.

    Example:
        >>> radial_law(np.array([np.log(np.e - 1.0)]), 2.0).round(3).tolist()  # exact: log(1 + t)
        [1.0]
    """
    check_exponents(p)
    # Time as a function of the norm: the integral of (p - 1) r^(p-2) e^r, in logs, by the trapezoidal rule in r^(p-1).
    radius = np.concatenate([[0.0], np.geomspace(1e-9, max(2.0 * float(np.max(log_time)), 10.0), 20_000)])
    power = radius ** (p - 1)
    pieces = np.log(np.diff(power)) + np.logaddexp(radius[1:], radius[:-1]) - np.log(2)
    return np.asarray(np.interp(log_time, np.logaddexp.accumulate(pieces), radius[1:]))
