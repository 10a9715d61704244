r"""How far out a locally optimal token must be to hold, where one rival holds it and one draws it away; this book's.

One sample with a query of length one, $p=2$. Let $a$ be the selected token minus its support token, $b$ the selected
token minus the nearest one of higher score, $g_s$ and $g_r$ by how much the scores rise from support to selected and
from selected to better. Far out the weights move along $g_s\,a-g_r\,e^{-\xi}\,b$, where $\xi$ is the lead over the
better token minus that over the support token.
"""

from __future__ import annotations

import numpy as np

from attnbook.mirror_descent.data import Problems

__all__ = ["break_even"]


def break_even(problem: Problems, selected: int, support: int, better: int) -> tuple[float, float]:
    r"""Return the slack of the better token and the extra lead at which the drift of that lead is zero.

    On the ray of the max-margin solution the extra lead $\xi$ is relative norm times slack; its drift is zero at
    $\log\frac{g_r(\|b\|^2-a^\top b)}{g_s(a^\top b-\|a\|^2)}$. Below, the better token catches up; above, it falls
    behind for ever.

    Args:
        problem: A stack of one problem with one sample.
        selected: Number of the token attended to.
        support: Number of its support token, of lower score.
        better: Number of the nearest token of higher score.

    Returns:
        Slack, the margin of the better token above one, and the extra lead; the second over the first is the relative
        norm from which training holds.

    Raises:
        ValueError: If the scores are not in this order.

    Example:
        >>> from attnbook.mirror_descent.data import plane_tokens
        >>> [round(number, 3) for number in break_even(plane_tokens(), 4, 3, 0)]
        [0.049, 4.74]
    """
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    holds, draws = float(scores[selected] - scores[support]), float(scores[better] - scores[selected])
    if holds <= 0 or draws <= 0:
        raise ValueError(f"better: expected scores that rise from support to selected to better, got {holds, draws}")
    a, b = tokens[selected] - tokens[support], tokens[selected] - tokens[better]
    lead = np.log(draws * (b @ b - a @ b) / (holds * (a @ b - a @ a)))
    return float(a @ b / (a @ a)) - 1, float(lead)
