r"""Matrix and head together: when mixing tokens costs margin, and how slowly one step size lets the matrix grow.

==========================  ==================================  =======================================
symbol                      name here                           meaning
==========================  ==================================  =======================================
$m_i$, $m_{it}$             ``margins``, ``other_margins``      margin of sample $i$ under $v_{mm}$ with its
                                                                selected token, and with token $t$ instead
$\lambda_i$                 ``multipliers``                     multiplier of sample $i$ in the head SVM
$r$                         ``head_norm``                       relative norm of the head,
                                                                $\|v\|_p/\|v_{mm}\|_p$
$\rho$                      ``relative_norm``                   relative norm of the matrix,
                                                                $\|W\|_{p,p}/\|W_\kappa\|_{p,p}$
$\kappa=r/\rho$             ``kappa``                           their ratio
==========================  ==================================  =======================================

All formulas of this module are this book's.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnbook.core.max_margin import max_margin
from attnbook.mirror_descent.models.relaxed_svm import HeadSVM
from attnbook.mirror_descent.theory.mirror import Exponents, check_exponents

__all__ = ["common_step_growth", "margin_change", "mixed_margins"]


def margin_change(head: HeadSVM) -> Float[np.ndarray, "problems samples others"]:
    r"""Return how fast the label margin $1/\|v_{mm}\|_p$ changes as sample $i$ mixes in token $t$.

    If the selected token of sample $i$ is replaced by $(1-\varepsilon)X_{i\alpha_i}+\varepsilon X_{it}$, the squared norm
    changes at the rate $2\lambda_i(m_i-m_{it})$, so the margin at the rate $-\lambda_i(m_i-m_{it})/\|v_{mm}\|_p^3$. Off
    the margin $\lambda_i=0$: mixing costs nothing.

    Args:
        head: The head SVM of the selected tokens.

    Returns:
        Derivatives at $\varepsilon=0$ for the tokens not selected, in order.
    """
    lost = head.margins[..., None] - head.other_margins
    return np.asarray(-head.multipliers[..., None] * lost / head.norm[:, None, None] ** 3)


def mixed_margins(
    tokens: Float[np.ndarray, "problems samples tokens dimension"],
    labels: Float[np.ndarray, "problems samples"],
    selected: Int[np.ndarray, "problems samples"],
    p: Exponents,
    share: float,
) -> Float[np.ndarray, "problems samples others"]:
    """Return the label margin when one sample mixes a share of another token into its own, every pair in turn.

    Args:
        tokens: Tokens of each sample.
        labels: Plus or minus one.
        selected: Token that each sample attends to.
        p: Exponent above 1; one number, or one per problem.
        share: The share of the other token, from 0 to 1.

    Returns:
        Largest margins of a head of norm one, for the tokens not selected, in order.

    Raises:
        ValueError: If the share is outside its range.
        InfeasibleError: If no head classifies a mixture (a ``ValueError``).
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected between 0 and 1, got {share}")
    problems, samples, n_tokens, dimension = tokens.shape
    own = np.take_along_axis(tokens, selected[..., None, None], axis=2)[:, :, 0]
    others = tokens[np.arange(n_tokens) != selected[..., None]].reshape(problems, samples, n_tokens - 1, dimension)
    rows = np.broadcast_to(own[:, None, None], (problems, samples, n_tokens - 1, samples, dimension)).copy()
    at = np.arange(samples)
    rows[:, at, :, at] = np.moveaxis((1 - share) * own[:, :, None] + share * others, 1, 0)
    rows *= labels[:, None, None, :, None]
    exponents = np.repeat(np.broadcast_to(check_exponents(p), problems), samples * (n_tokens - 1))
    norm = max_margin(rows.reshape(-1, samples, dimension), exponents).norm
    return np.asarray(1 / norm.reshape(problems, samples, n_tokens - 1))


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
        >>> float(common_step_growth(np.array(9.0), 3.0))
        2.7
    """
    if not (np.asarray(relative_norm) > 0).all():
        raise ValueError(f"relative_norm: expected numbers above 0, got {np.min(relative_norm)}")
    exponents = check_exponents(p)
    return np.asarray(exponents / (1 + (exponents - 2) / relative_norm))
