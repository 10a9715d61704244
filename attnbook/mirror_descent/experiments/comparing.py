"""Trained matrices beside the max-margin solutions of the tokens that they attend to themselves."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, attention_weights
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.data import Problems

__all__ = ["compared"]


def compared(
    path: Float[np.ndarray, "records members d d"], problems: Problems, ps: np.ndarray, shape: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Compare each run with the max-margin solutions of the tokens it attends to last.

    Args:
        path: Matrices along the runs; members are ordered by exponent, kind of query, seed.
        problems: The problem of each member.
        ps: The exponent of each member.
        shape: Numbers of exponents, of kinds of query and of seeds.

    Returns:
        Arrays by name, as in :class:`~attnbook.mirror_descent.experiments.direction.Direction`; axes start with kinds
        of query, seeds and exponents.

    Raises:
        ValueError: If tokens that a run attends to cannot be selected.
    """
    last = path[-1]
    batch = Batch.of(problems)
    attended = np.stack([attention_weights(torch.tensor(w), batch).numpy().argmax(axis=-1) for w in path], axis=-1)
    attention = attention_weights(torch.tensor(last), batch).numpy()
    selected = attended[..., -1]
    solution = attention_svm(problems.tokens, problems.queries, selected, ps)
    unit, ray = mirror.normalised(path, ps), mirror.normalised(solution.weight, ps)
    rays = np.broadcast_to(ray, path.shape)
    found = {
        "divergence": np.moveaxis(mirror.bregman_divergence(rays, unit, ps), 0, -1),
        "cosine": np.moveaxis(_cosine(rays, path), 0, -1),
        "relative_norm": np.moveaxis(mirror.entrywise_norm(path, ps) / solution.norm, 0, -1),
        "unchanged": (attended == selected[..., None]).all(axis=1).astype(float),
        "locally_optimal": locally_optimal(problems.token_scores, selected, solution.support).astype(float),
        "globally_optimal": (selected == problems.best_tokens).all(axis=1).astype(float),
        "least_attention": attention.max(axis=-1).min(axis=-1),
    }
    pair = np.stack([last, solution.weight], axis=1)
    found |= {"effective_dimension": mirror.effective_dimension(pair), "share": mirror.share_above(pair)}
    found |= _crossed(last, problems, selected, np.unique(ps))
    arrays = {name: np.moveaxis(a.reshape(*shape, *a.shape[1:]), 0, 2) for name, a in found.items()}
    tokens = np.moveaxis(selected.reshape(*shape, -1), 0, 2)
    arrays["same_tokens"] = (tokens[:, :, :, None] == tokens[:, :, None]).all(axis=-1).astype(float)
    first = last.reshape(*shape, *last.shape[1:])[:, 0, 0]
    arrays["weights"] = first / np.abs(first).max(axis=(1, 2), keepdims=True)
    return arrays


def _crossed(
    last: np.ndarray, problems: Problems, selected: np.ndarray, targets: np.ndarray
) -> dict[str, Float[np.ndarray, "members targets"]]:
    """Divergence and cosine of each run to the solution of its own tokens, for every exponent."""
    # Its own tokens: so a run is not far away for the reason alone that the target's run selects others.
    found: dict[str, list[np.ndarray]] = {"cross": [], "cross_cosine": []}
    for p in targets.tolist():
        weight = attention_svm(problems.tokens, problems.queries, selected, p).weight
        found["cross"].append(mirror.bregman_divergence(mirror.normalised(weight, p), mirror.normalised(last, p), p))
        found["cross_cosine"].append(_cosine(weight, last))
    return {name: np.stack(columns, axis=1) for name, columns in found.items()}


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (mirror.normalised(first, 2.0) * mirror.normalised(second, 2.0)).sum(axis=(-2, -1))
