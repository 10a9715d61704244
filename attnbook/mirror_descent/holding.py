r"""How far out a locally optimal token must be to hold, where one rival holds it and one draws it away.

==========================  ==========================  ==========================================================
symbol                      name here                   meaning
==========================  ==========================  ==========================================================
$a$                         ``support``                 selected token minus its support token, ``(dimension,)``
$b$                         ``better``                  selected token minus the nearest one of higher score
$g_s$                       ``holds``                   score of the selected token minus that of the support token
$g_r$                       ``draws``                   score of the better token minus that of the selected one
$\xi$                       ``extra``                   lead over the better token minus lead over the support token
==========================  ==========================  ==========================================================

Far out and for $p=2$ one sample moves along $g_s\,a-g_r\,e^{-\xi}\,b$ (the query has length one). The formulas of
this module are this book's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.data import Problems

__all__ = ["TwoRivals", "two_rivals"]


class TwoRivals(NamedTuple):
    """One selected token, its support token and the nearest token of higher score.

    Attributes:
        support: Selected token minus the support token.
        better: Selected token minus the better one.
        holds: Score of the selected token minus that of the support token, above zero.
        draws: Score of the better token minus that of the selected one, above zero.
    """

    support: Float[np.ndarray, " dimension"]
    better: Float[np.ndarray, " dimension"]
    holds: float
    draws: float

    @property
    def slack(self) -> float:
        r"""Margin of the better token above one at the max-margin solution $a/\|a\|^2$."""
        return float(self.support @ self.better / (self.support @ self.support)) - 1

    @property
    def break_even(self) -> float:
        r"""The extra lead at which the drift is zero, $\log\frac{g_r(\|b\|^2-a^\top b)}{g_s(a^\top b-\|a\|^2)}$."""
        inner = self.support @ self.better
        falls = self.draws * (self.better @ self.better - inner)
        return float(np.log(falls / (self.holds * (inner - self.support @ self.support))))

    def drift(self, extra: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch"]:
        r"""Return by how much the extra lead changes while the weights move by one.

        Args:
            extra: Lead over the better token minus lead over the support token.

        Returns:
            Changes; negative below :attr:`break_even`, positive above.
        """
        pull = self.draws * np.exp(-np.asarray(extra, dtype=np.float64))[..., None]
        step = self.holds * self.support - pull * self.better
        return np.asarray(step @ (self.better - self.support) / np.linalg.norm(step, axis=-1))


def two_rivals(problem: Problems, selected: int, support: int, better: int) -> TwoRivals:
    """Return the three tokens' part of a problem of one sample.

    Args:
        problem: A stack of one problem with one sample.
        selected: Number of the token attended to.
        support: Number of its support token, of lower score.
        better: Number of the nearest token of higher score.

    Returns:
        Differences of tokens and of scores.

    Raises:
        ValueError: If the scores are not in this order.

    Example:
        >>> from attnbook.mirror_descent.data import plane_tokens
        >>> case = two_rivals(plane_tokens(), 4, 3, 0)
        >>> round(case.slack, 3), round(case.break_even, 2)
        (0.049, 4.74)
    """
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    holds, draws = float(scores[selected] - scores[support]), float(scores[better] - scores[selected])
    if holds <= 0 or draws <= 0:
        raise ValueError(f"better: expected scores that rise from support to selected to better, got {holds, draws}")
    return TwoRivals(tokens[selected] - tokens[support], tokens[selected] - tokens[better], holds, draws)
