r"""Matrix and head together: how slowly one step size lets the matrix grow.

==========================  ==================================  =======================================
symbol                      name here                           meaning
==========================  ==================================  =======================================
$r$                         ``head_norm``                       relative norm of the head,
                                                                $\|v\|_p/\|v_{mm}\|_p$
$\rho$                      ``relative_norm``                   relative norm of the matrix,
                                                                $\|W\|_{p,p}/\|W_\kappa\|_{p,p}$
$\kappa=r/\rho$             ``kappa``                           their ratio
==========================  ==================================  =======================================

The formula of this module is this book's.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import Exponents, check_exponents

__all__ = ["common_step_growth"]


def common_step_growth(relative_norm: Float[np.ndarray, "*batch"], p: Exponents) -> Float[np.ndarray, "*batch"]:
    r"""Return the slope of $\rho$ against $\log r$ when one step size moves both blocks on their rays.

    Then $\frac{d}{dt}r^{p-1}\propto e^{-r}$ and $\frac{d}{dt}\rho^{p-1}\propto r\,e^{-r}e^{-\rho}$, so
    $\rho^{p-2}e^\rho\propto r^p$ up to terms of lower order: $\frac{d\rho}{d\log r}=\frac{p}{1+(p-2)/\rho}$.

    Args:
        relative_norm: $\rho$, above zero.
        p: Exponent above 1.

    Returns:
        Slopes, near $p$ far out.

    Raises:
        ValueError: If a norm or an exponent is outside its range.

    Example:
        >>> round(float(common_step_growth(np.array(9.0), 3.0)), 6)
        2.7
    """
    if not (np.asarray(relative_norm) > 0).all():
        raise ValueError(f"relative_norm: expected numbers above 0, got {np.min(relative_norm)}")
    exponents = check_exponents(p)
    return np.asarray(exponents / (1 + (exponents - 2) / relative_norm))
