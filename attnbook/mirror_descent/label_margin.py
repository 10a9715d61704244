r"""How the label margin $1/\|v_{mm}\|_p$ changes when a sample mixes another token into its selected one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnbook.core.max_margin import max_margin
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.relaxed_svm import HeadSVM

__all__ = ["margin_change", "mixed_margins"]


def margin_change(head: HeadSVM) -> Float[np.ndarray, "problems samples others"]:
    r"""Return how fast the label margin $1/\|v_{mm}\|_p$ changes as sample $i$ mixes in token $t$.

    If the selected token of sample $i$ is replaced by $(1-\varepsilon)X_{i\alpha_i}+\varepsilon X_{it}$, the squared
    norm changes at the rate $2\lambda_i(m_i-m_{it})$, so the margin at the rate
    $-\lambda_i(m_i-m_{it})/\|v_{mm}\|_p^3$. Off the margin $\lambda_i=0$: mixing costs nothing.

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
    p: mirror.Exponents,
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
    exponents = np.repeat(np.broadcast_to(mirror.check_exponents(p), problems), samples * (n_tokens - 1))
    norm = max_margin(rows.reshape(-1, samples, dimension), exponents).norm
    return np.asarray(1 / norm.reshape(problems, samples, n_tokens - 1))
