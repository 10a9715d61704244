"""What is measured of a network on samples of the tokenised mixture: errors, and where its attention is."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import layer
from attnbook.multi_head.data import Samples
from attnbook.multi_head.layer import PerSample, Tokens

__all__ = ["error_rate", "leak_and_margin", "logit_gaps", "relevant_mass"]


def error_rate(outputs: PerSample, labels: PerSample) -> Float[Tensor, " members"]:
    """Return the share of samples whose output does not have the sign of the label; zero and NaN are errors.

    Args:
        outputs: Outputs of each member.
        labels: Labels 1 or -1.

    Returns:
        One share for each member.
    """
    return (~(outputs * labels > 0)).to(outputs.dtype).mean(1)


def relevant_mass(
    parameters: Parameters, tokens: Tokens, relevant: Bool[Tensor, "members samples tokens"]
) -> Float[Tensor, "members heads"]:
    r"""Return how much of its attention each head gives to the relevant tokens, on average over samples and queries.

    Args:
        parameters: The networks.
        tokens: Samples of each member.
        relevant: Which tokens carry the label.

    Returns:
        One share for each head; uniform attention gives $\zeta$, the share of relevant tokens.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if relevant.shape != tokens.shape[:3]:
        raise ValueError(f"relevant: expected {tuple(tokens.shape[:3])}, got {tuple(relevant.shape)}")
    weights = layer.attention_weights(parameters, tokens)
    return (weights * relevant[:, :, None, None]).sum(4).mean((1, 3))


def leak_and_margin(
    drawn: Samples, decoder: Float[np.ndarray, "tokens dimension"], key_query: Float[np.ndarray, "dimension dimension"]
) -> tuple[float, float]:
    r"""Return how far one head is from saturation on some samples, and by how much it separates them.

    Args:
        drawn: The samples.
        decoder: The head's $U$.
        key_query: Its $W$; zeros are uniform attention.

    Returns:
        The largest share of its attention that a query gives to irrelevant keys, and the smallest margin $y\,\Phi(X)$,
        not divided by a norm.
    """
    head = {name: torch.from_numpy(one)[None, None] for name, one in (("decoder", decoder), ("key_query", key_query))}
    tokens = torch.from_numpy(drawn.tokens)[None]
    weights = layer.attention_weights(head, tokens)[0, :, 0].numpy()
    leaks = np.where(drawn.relevant[:, None], 0.0, weights).sum(2)
    return float(leaks.max()), float((drawn.labels * layer.outputs(head, tokens)[0].numpy()).min())


def logit_gaps(
    drawn: Samples, key_query: Float[np.ndarray, "dimension dimension"]
) -> Float[np.ndarray, "samples queries keys"]:
    """Return by how much each irrelevant key's logit is below that of the relevant keys, for each sample and query.

    Args:
        drawn: The samples.
        key_query: One head's $W$.

    Returns:
        The gaps; where relevant keys differ, the smallest of their logits counts.

    Raises:
        ValueError: If samples differ in the number of relevant tokens, or have none, or only relevant ones.
    """
    counts, (samples, n_tokens) = drawn.relevant.sum(1), drawn.relevant.shape
    if counts.min() != counts.max() or not 0 < counts[0] < n_tokens:
        raise ValueError(f"drawn: expected equally many relevant tokens, 1 to {n_tokens - 1}, got {counts.tolist()}")
    logits = drawn.tokens @ key_query @ drawn.tokens.swapaxes(1, 2)
    keys = np.broadcast_to(drawn.relevant[:, None], logits.shape)
    of_relevant = np.where(keys, logits, np.inf).min(2, keepdims=True)
    return (of_relevant - logits)[~keys].reshape(samples, n_tokens, -1)
