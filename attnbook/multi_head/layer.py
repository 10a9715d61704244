r"""Outputs and gradients of multi-head attention in closed form (Lemma 1 for all heads at once).

With $A=\varphi(XW_hX^\top)$, $G=U_hX^\top$ and $D=A\odot(G-\mathrm{rowsum}(A\odot G))$ one has
$\nabla_{U_h}\langle U_h,AX\rangle=AX$ and $\nabla_{W_h}\langle U_h,AX\rangle=X^\top DX$; no softmax Jacobian is formed.

A *head* below may stand for many equal ones, as many as its entry of ``counts`` says (see
:mod:`~attnbook.multi_head.head_groups`). Then $\tilde\Phi=H^{-c}\sum_hm_h\Phi_h$ with $H=\sum_hm_h$, and a
gradient is that of *one* of the equal heads, $H^{-c}\nabla\Phi_h$ without the factor $m_h$. The paper's exponent is
$c=1/2$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["Objective", "attention_weights", "check", "outputs", "value_and_gradient"]

Tokens: TypeAlias = Float[Tensor, "members samples tokens dimension"]
PerSample: TypeAlias = Float[Tensor, "members samples"]
Counts: TypeAlias = Float[Tensor, "members heads"]

Objective: TypeAlias = Callable[[PerSample], tuple[Float[Tensor, " members"], PerSample]]
"""Outputs to (value of each member's objective, its derivative in each output)."""


def attention_weights(parameters: Parameters, tokens: Tokens) -> Float[Tensor, "members samples heads tokens tokens"]:
    r"""Return $\varphi(XW_hX^\top)$: for each head and query token (row) how much it attends to each token.

    Args:
        parameters: As for :func:`outputs`.
        tokens: Samples of each member.

    Returns:
        The weights; rows sum to one.

    Raises:
        ValueError: If the shapes do not fit.
    """
    members, heads, n_tokens, _ = check(parameters, tokens)
    by_key = _attention(parameters["key_query"], tokens)
    return by_key.view(members, -1, n_tokens, n_tokens, heads).permute(0, 1, 4, 3, 2)


def outputs(
    parameters: Parameters, tokens: Tokens, *, counts: Counts | None = None, exponent: float = 0.5
) -> PerSample:
    r"""Return $\tilde\Phi(X_i)$ of each member for its own samples; its sign is the predicted label.

    Args:
        parameters: ``decoder`` and ``key_query``, as in :mod:`~attnbook.multi_head.network`.
        tokens: Samples of each member.
        counts: How many equal heads each stands for, zero for none; default one each.
        exponent: The power $c$ of the number of heads that the sum is divided by; default the paper's.

    Returns:
        One number for each member and sample.

    Raises:
        ValueError: If the shapes do not fit or a count is out of range.
    """
    check(parameters, tokens, counts=counts)
    read = (_attention(parameters["key_query"], tokens) * _values(parameters["decoder"], tokens)).sum(1)
    return _add_up(read, tokens, counts) / _divisor(parameters, counts, exponent)


def value_and_gradient(
    parameters: Parameters, tokens: Tokens, objective: Objective, *, counts: Counts | None = None, exponent: float = 0.5
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return each member's objective and its gradient in the parameters of one head of each kind.

    Args:
        parameters: As for :func:`outputs`, like all that is not said here.
        tokens: Samples of each member.
        objective: What is minimised, for example :func:`~attnbook.multi_head.objectives.logistic`.
        counts: How many equal heads each stands for; default one each.
        exponent: The power $c$; default the paper's.

    Returns:
        Values and gradients.

    Raises:
        ValueError: If the shapes do not fit or a count is out of range.
    """
    members, heads, n_tokens, dimension = check(parameters, tokens, counts=counts)
    divisor = _divisor(parameters, counts, exponent)
    attention = _attention(parameters["key_query"], tokens)
    weighted = attention * _values(parameters["decoder"], tokens)
    read = weighted.sum(1, keepdim=True)
    values, slopes = objective(_add_up(read, tokens, counts) / divisor)

    # Every token, times the weight of its sample.
    pulls = (tokens * (slopes / divisor)[:, :, None, None]).view(members, -1, dimension)
    decoder = torch.bmm(attention.view(members, pulls.shape[1], -1).mT, pulls)
    weighted.addcmul_(attention, read, value=-1.0)
    pulled = torch.bmm(weighted.mT, tokens.reshape(-1, n_tokens, dimension))
    key_query = torch.bmm(pulls.mT, pulled.view(members, pulls.shape[1], -1))
    return values, {
        "decoder": decoder.view(members, n_tokens, heads, dimension).transpose(1, 2),
        "key_query": key_query.view(members, dimension, heads, dimension).transpose(1, 2),
    }


def check(
    parameters: Parameters, tokens: Tensor, labels: Tensor | None = None, *, counts: Tensor | None = None
) -> tuple[int, int, int, int]:
    """Return members, heads, tokens and dimension of arguments that fit one another.

    Args:
        parameters: ``decoder`` and ``key_query``.
        tokens: Samples of each member.
        labels: One for each sample; default not looked at.
        counts: Heads that each head stands for; default not looked at.

    Returns:
        The four sizes.

    Raises:
        ValueError: If a shape does not fit, a count is negative, or a member has no head; says which.
    """
    if tokens.ndim != 4:
        raise ValueError(f"tokens: expected (members, samples, tokens, dimension), got {tuple(tokens.shape)}")
    missing = {"decoder", "key_query"} - set(parameters)
    if missing:
        raise ValueError(f"parameters: expected {sorted(missing)[0]!r}, got {sorted(parameters)}")
    members, samples, n_tokens, dimension = tokens.shape
    heads = max((1, *parameters["decoder"].shape[1:2]))
    for name, array, shape in (
        ("parameters['decoder']", parameters["decoder"], (members, heads, n_tokens, dimension)),
        ("parameters['key_query']", parameters["key_query"], (members, heads, dimension, dimension)),
        ("labels", labels, (members, samples)),
        ("counts", counts, (members, heads)),
    ):
        if array is not None and tuple(array.shape) != shape:
            raise ValueError(f"{name}: expected {shape}, got {tuple(array.shape)}")
    if counts is not None and not (counts.min() >= 0 and counts.sum(1).min() > 0 and counts.max() < torch.inf):
        raise ValueError(f"counts: expected finite numbers of at least 0, not all 0, got {counts.tolist()}")
    return members, heads, n_tokens, dimension


def _divisor(parameters: Parameters, counts: Tensor | None, exponent: float) -> Tensor:
    """Return the divisor of each member as ``(members, 1)``."""
    decoder = parameters["decoder"]
    if counts is None:
        return decoder.new_full((len(decoder), 1), decoder.shape[1]) ** exponent
    return counts.sum(1, keepdim=True).to(decoder.dtype) ** exponent


# Below, the rows of one sample are ordered (query token, head), and attention is stored with the key token first,
# (members * samples, keys, queries * heads): a softmax over a short last axis takes six times as long as over this one.


def _attention(key_query: Tensor, tokens: Tensor) -> Tensor:
    members, _, n_tokens, dimension = tokens.shape
    queries = torch.bmm(tokens.reshape(members, -1, dimension), key_query.transpose(1, 2).flatten(2))
    queries = queries.view(-1, n_tokens, queries.shape[2] // dimension, dimension).flatten(1, 2)
    return torch.bmm(tokens.reshape(-1, n_tokens, dimension), queries.mT).softmax(1)


def _values(decoder: Tensor, tokens: Tensor) -> Tensor:
    """Return $XU_h^T$, for each key what each query of each head would read off it; laid out as attention."""
    members, _, n_tokens, dimension = decoder.shape
    by_query = decoder.transpose(1, 2).reshape(members, -1, dimension)
    return torch.bmm(tokens.reshape(members, -1, dimension), by_query.mT).view(-1, n_tokens, by_query.shape[1])


def _add_up(read: Tensor, tokens: Tensor, counts: Tensor | None) -> Tensor:
    """Add what all queries of all heads have read; a head counts as often as it stands for others."""
    members, samples, n_tokens, _ = tokens.shape
    by_head = read.view(members, samples, n_tokens, -1).sum(2)
    return by_head.sum(2) if counts is None else torch.bmm(by_head, counts.to(by_head.dtype).unsqueeze(2)).squeeze(2)
