"""Jointly trained matrices and heads beside the max-margin solutions of the tokens that they attend to."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, joined
from attnbook.mirror_descent.relaxed_svm import (
    RelaxedSVM,
    head_svm,
    relaxed_svm,
    right_hand_sides,
    self_consistent,
)

__all__ = ["attended", "compared_jointly", "cosine", "targets"]


def attended(key_query: Float[np.ndarray, "members d d"], problems: Problems) -> Int[np.ndarray, "members samples"]:
    """Return the token of each sample with the highest logit."""
    keys = problems.queries @ key_query.transpose(0, 2, 1)
    return np.asarray(np.einsum("pntd,pnd->pnt", problems.tokens, keys).argmax(axis=2))


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosines of matrices, entry by entry as vectors."""
    return np.asarray((mirror.normalised(first, 2.0) * mirror.normalised(second, 2.0)).sum(axis=(-2, -1)))


def targets(
    key_query: Float[np.ndarray, "members d d"],
    decoder: Float[np.ndarray, "members d"],
    problems: Problems,
    p: np.ndarray,
) -> tuple[dict[str, np.ndarray], RelaxedSVM]:
    """Compare matrices and heads with every target, for the tokens attended by each.

    Args:
        key_query: Trained matrices.
        decoder: Trained heads.
        problems: The problem of each member.
        p: The exponent of each member.

    Returns:
        Numbers by name, ``(members,)`` each, and the corrected solutions.
    """
    selected, given = attended(key_query, problems), (problems.tokens, problems.queries)
    head = head_svm(problems.tokens, problems.labels, selected, p)
    head_norm = mirror.entrywise_norm(decoder[:, None], p) / head.norm
    norm = mirror.entrywise_norm(key_query, p)
    corrected = self_consistent(*given, selected, head, head_norm / norm, p)
    raw = self_consistent(*given, selected, head, head_norm / norm, p, floor=False)
    rest = relaxed_svm(*given, selected, right_hand_sides(head, np.full(len(norm), np.inf)), p)
    plain = attention_svm(*given, selected, p)
    found = {
        "cosine_head": cosine(decoder[:, None], head.weight[:, None]),
        "cosine_plain": cosine(key_query, plain.weight),
        "cosine_corrected": cosine(key_query, corrected.weight),
        "cosine_raw": cosine(key_query, raw.weight),
        "cosine_limit": cosine(key_query, rest.weight),
        "kappa": corrected.kappa,
        "head_norm": head_norm,
        "relative_norm": norm / corrected.norm,
        "all_support": head.support.all(axis=1).astype(float),
        "largest_margin": head.margins.max(axis=1),
    }
    return found, corrected


def compared_jointly(
    key_query: Float[np.ndarray, "records members d d"],
    decoder: Float[np.ndarray, "records members d"],
    problems: Problems,
    p: np.ndarray,
) -> dict[str, Float[np.ndarray, "members records"]]:
    """Compare every record of every run with the targets of the tokens attended then.

    Args:
        key_query: Matrices along the runs.
        decoder: Heads along the runs.
        problems: The problem of each member.
        p: The exponent of each member.

    Returns:
        Arrays by name, as in :class:`~attnbook.mirror_descent.experiments.joint_training.JointTraining`.
    """
    records, members = decoder.shape[:2]
    flat = key_query.reshape(-1, *key_query.shape[2:]), decoder.reshape(-1, decoder.shape[2])
    found, _ = targets(*flat, joined([problems] * records), np.tile(p, records))
    tokens = np.stack([attended(one, problems) for one in key_query])
    same = (tokens == tokens[-1]).all(axis=2).T.astype(float)
    return {name: a.reshape(records, members).T for name, a in found.items()} | {"unchanged": same}
