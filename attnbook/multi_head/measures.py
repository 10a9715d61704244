r"""What is measured of a network on samples of the tokenised mixture.

Errors, attention on relevant tokens, and how strongly attention must be scaled to look at nothing else: a query gives
relevant keys a logit $r$ and an irrelevant one $r-g_s$. If attention is scaled by $\Gamma$ and there are $k$ relevant
keys, what irrelevant ones get is

.. math:: \frac{\sum_se^{-\Gamma g_s}}{k+\sum_se^{-\Gamma g_s}},

which is at most $\epsilon$ exactly if $\sum_se^{-\Gamma g_s}\le k\,\epsilon/(1-\epsilon)$.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import layer
from attnbook.multi_head.checks import between_zero_and_one, whole
from attnbook.multi_head.data import Samples
from attnbook.multi_head.layer import PerSample, Tokens

__all__ = ["error_rate", "leak_and_margin", "logit_gaps", "needed_scale", "relevant_mass"]


def error_rate(outputs: PerSample, labels: PerSample) -> Float[Tensor, " members"]:
    """Return the share of samples whose output does not have the sign of the label; an output of zero is an error."""
    return (outputs * labels <= 0).to(outputs.dtype).mean(1)


def relevant_mass(
    parameters: Parameters, tokens: Tokens, relevant: Bool[Tensor, "members samples tokens"]
) -> Float[Tensor, "members heads"]:
    r"""Return how much of its attention each head gives to the relevant tokens, on average over samples and queries.

    Uniform attention gives $\zeta$, the share of relevant tokens.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if relevant.shape != tokens.shape[:3]:
        raise ValueError(f"relevant: expected {tuple(tokens.shape[:3])}, got {tuple(relevant.shape)}")
    weights = layer.attention_weights(parameters, tokens)
    on_relevant = weights * relevant[:, :, None, None, :].to(weights.dtype)
    return on_relevant.sum(4).mean((1, 3))


def leak_and_margin(
    drawn: Samples, decoder: Float[np.ndarray, "tokens dimension"], key_query: Float[np.ndarray, "dimension dimension"]
) -> tuple[float, float]:
    r"""Return how far one head is from saturation on some samples, and by how much it separates them.

    That is the largest share of its attention that a query gives to irrelevant keys, and the smallest margin
    $y\,\Phi(X)$, not divided by a norm. A key-query matrix of zeros is uniform attention.
    """
    head = {"decoder": decoder, "key_query": key_query}
    parameters = {name: torch.from_numpy(matrix)[None, None] for name, matrix in head.items()}
    tokens = torch.from_numpy(drawn.tokens)[None]
    outputs = layer.outputs(parameters, tokens)[0].numpy()
    weights = layer.attention_weights(parameters, tokens)[0, :, 0].numpy()
    leaks = np.where(drawn.relevant[:, None], 0.0, weights).sum(2)
    return float(leaks.max()), float((drawn.labels * outputs).min())


def logit_gaps(
    drawn: Samples, key_query: Float[np.ndarray, "dimension dimension"]
) -> Float[np.ndarray, "samples queries keys"]:
    """Return by how much each irrelevant key's logit is below that of the relevant keys, for each sample and query.

    Where relevant keys differ, the smallest of their logits counts.

    Raises:
        ValueError: If samples differ in the number of relevant tokens, or have none, or only relevant ones.
    """
    counts = drawn.relevant.sum(1)
    samples, n_tokens = drawn.relevant.shape
    if counts.min() != counts.max() or not 0 < counts[0] < n_tokens:
        raise ValueError(f"drawn: expected equally many relevant tokens, 1 to {n_tokens - 1}, got {counts.tolist()}")
    logits = drawn.tokens @ key_query @ drawn.tokens.swapaxes(1, 2)
    keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
    of_relevant = np.where(keys, logits, np.inf).min(2, keepdims=True)
    return (of_relevant - logits)[~keys].reshape(samples, n_tokens, -1)


def needed_scale(gaps: Float[np.ndarray, "*rows keys"], n_relevant: int, leak: float) -> float:
    r"""Return the smallest $\Gamma\ge0$ at which no query gives irrelevant keys more than $\epsilon$ of its attention.

    Newton's method on the largest of convex functions, from the left: each step stays below the answer.

    Args:
        gaps: Gaps of the irrelevant keys of each query, positive.
        n_relevant: Number $k$ of relevant keys, at least 1.
        leak: The share $\epsilon$, between 0 and 1.

    Raises:
        ValueError: If a gap is not positive (no scale helps), or an argument is outside its range.

    Example:
        >>> bool(np.isclose(needed_scale(np.array([[1.0, 1.0], [2.0, 2.0]]), 1, 0.5), np.log(2)))
        True
    """
    whole(n_relevant=n_relevant)
    between_zero_and_one(leak=leak)
    if not gaps.min() > 0:
        raise ValueError(f"gaps: expected positive numbers, the smallest is {gaps.min():g}: no scale helps")
    rows, target = gaps.reshape(-1, gaps.shape[-1]), np.log(n_relevant * leak / (1 - leak))
    scale = 0.0
    while True:
        weights = np.exp(-scale * rows)
        worst = weights.sum(1).argmax()
        excess = np.log(weights[worst].sum()) - target
        if excess <= 1e-12:
            return float(scale)
        scale += excess * weights[worst].sum() / (weights[worst] @ rows[worst])
