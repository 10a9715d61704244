r"""What is asked of jointly trained matrices at the end: which ratio fits, and what mixing does to the label margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent import label_margin
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.experiments.joint_comparing import attended, cosine
from attnbook.mirror_descent.relaxed_svm import head_svm, relaxed_svm, right_hand_sides

__all__ = ["SHARE", "mix", "part", "scan"]

# Share of another token that is mixed in.
SHARE = 1e-5


def part(problems: Problems, which: slice | np.ndarray) -> Problems:
    """Return some of the problems.

    Args:
        problems: Problems.
        which: Which of them.

    Returns:
        Those problems.
    """
    return Problems(problems.tokens[which], problems.queries[which], problems.labels[which], problems.decoder[which])


def scan(
    key_query: Float[np.ndarray, "members d d"],
    problems: Problems,
    norms: Float[np.ndarray, " members"],
    ratios: Sequence[float],
    p: float,
) -> dict[str, np.ndarray]:
    r"""Compare matrices with the solutions for given ratios, and return the gaps that they have.

    Args:
        key_query: Trained matrices.
        problems: The problem of each member.
        norms: $\rho$ of each matrix.
        ratios: Ratios in the right-hand sides.
        p: Exponent.

    Returns:
        ``scanned``, ``gaps``, ``margins`` and ``floored``, as in
        :class:`~attnbook.mirror_descent.experiments.joint_training.JointTraining`.
    """
    selected, given = attended(key_query, problems), (problems.tokens, problems.queries)
    head = head_svm(problems.tokens, problems.labels, selected, p)
    solutions = [
        relaxed_svm(*given, selected, right_hand_sides(head, np.full(len(norms), ratio)), p) for ratio in ratios
    ]
    logits = np.einsum("pntd,pde,pne->pnt", problems.tokens, key_query, problems.queries)
    own = np.take_along_axis(logits, selected[..., None], axis=2)
    gaps = np.where(logits == own, np.inf, own - logits).min(axis=2)
    return {
        "scanned": np.stack([cosine(key_query, solution.weight) for solution in solutions], axis=1),
        "gaps": gaps / norms[:, None],
        "margins": head.margins,
        "floored": (head.other_margins < 1).any(axis=2).astype(float),
    }


def mix(
    key_query: Float[np.ndarray, "members d d"], problems: Problems, p: Float[np.ndarray, " members"]
) -> dict[str, np.ndarray]:
    """Return the change of the label margin per share of another token, by a small share and by the formula.

    Args:
        key_query: Trained matrices.
        problems: The problem of each member.
        p: The exponent of each member.

    Returns:
        ``change``, ``predicted_change`` and ``on_margin``, as in
        :class:`~attnbook.mirror_descent.experiments.joint_training.JointTraining`.
    """
    selected = attended(key_query, problems)
    head = head_svm(problems.tokens, problems.labels, selected, p)
    mixed = label_margin.mixed_margins(problems.tokens, problems.labels, selected, p, SHARE)
    return {
        "change": (mixed - 1 / head.norm[:, None, None]) / SHARE,
        "predicted_change": label_margin.margin_change(head),
        "on_margin": head.support.astype(float),
    }
