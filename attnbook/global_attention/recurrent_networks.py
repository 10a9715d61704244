r"""Recurrent attention (Appendix A of the paper), the two layers that read what it found, and penalties on attention.

A sentence is looked at $T$ times. At step $k$ every word gets a score that depends on the word and on a state; softmax
turns scores into weights $\alpha_{kj}$; the weighted mean of the words is the context $c_k$. With the paper's indices

.. math::

    s_k = f(s_{k-1}, c_{k-1}),\quad \alpha_k = \mathrm{softmax}_j\,\mathrm{score}(s_{k-1}, x^j),\quad
    c_k = \sum_j \alpha_{kj}x^j,\quad y = w^{(2)\top}\phi(w^{(1)}c_T).

The paper leaves $f$, score, $s_0$ and $c_0$ open. Here $f(s,c)=\tanh(Us+Wc)$, $s_0$ is all ones, $c_0=0$, nothing has
a bias, and the score is additive, $v^\top\tanh(Ps+Rx)$, as Bahdanau, Cho and Bengio have it, or the product
$s^\top Rx$. Automatic differentiation works through all of it.

====================  ======================================  ====================================================
paper                 name here                               shape, without the leading member axis
====================  ======================================  ====================================================
$U$, $W$ ($w_f$)      ``state_state``, ``state_context``      ``(state, state)``, ``(state, dimension)``
$P$, $R$, $v$         ``score_state``, ``score_word``,        ``(score, state)``, ``(score or state, dimension)``,
($w_a$)               ``score_out``                           ``(score,)``
$w^{(1)}$, $w^{(2)}$  ``hidden``, ``decoder``                 ``(width, dimension)``, ``(width,)``
====================  ======================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = [
    "AttentionStep",
    "Penalty",
    "Recurrence",
    "attention_penalty",
    "initial_parameters",
    "looks",
    "predict",
    "read",
]

Penalty: TypeAlias = Literal["l1_weights", "entropy", "l1_scores", "l2_weights"]


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a recurrent attention model."""

    n_steps: int  #: Looks $T$
    state: int  #: Entries of the state
    score: int  #: Hidden units of the additive score; 0 for the product of state and word, which has none

    def __post_init__(self) -> None:
        for name, least in {"n_steps": 1, "state": 1, "score": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")


class AttentionStep(NamedTuple):
    """What one step sees."""

    logits: Float[Tensor, "members samples words"]  #: Scores of the words, ``(members, samples, words)``
    weights: Float[Tensor, "members samples words"]  #: Their softmax
    #: The weighted mean of the words, ``(members, samples, dimension)``
    context: Float[Tensor, "members samples dimension"]


def initial_parameters(
    recurrence: Recurrence | None, n_features: int, width: int, *, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return initial weights of one network, without member axis: of variance 1 / fan-in, the two layers first.

    Args:
        recurrence: Sizes of score and recurrence; None for a network whose features are given.
        n_features: Entries of what the two layers read; for recurrent attention, of a word.
        width: Hidden units of the two layers.
        rng: Source of randomness.
    """
    shapes: dict[str, tuple[int, ...]] = {"hidden": (width, n_features), "decoder": (width,)}
    if recurrence is not None:
        state, units = recurrence.state, recurrence.score
        shapes["score_word"] = (units or state, n_features)
        if units:
            shapes |= {"score_out": (units,), "score_state": (units, state)}
        if recurrence.n_steps > 1:
            shapes |= {"state_state": (state, state), "state_context": (state, n_features)}
    return {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}


def looks(
    parameters: Parameters, sentences: Float[Tensor, "members samples words dimension"], n_steps: int
) -> list[AttentionStep]:
    """Return what each of some looks at sentences sees.

    Args:
        parameters: As :func:`initial_parameters`, with a leading member axis; the score is additive if they have
            ``score_out``, else the product.
        sentences: Sentences of each member, one word per row.
        n_steps: Number of looks $T$, at least 1.

    Raises:
        ValueError: If ``n_steps`` is not positive, or is above 1 for parameters without a recurrence.
    """
    if n_steps < 1 or (n_steps > 1 and "state_state" not in parameters):
        raise ValueError(f"n_steps: expected 1, or more with parameters of a recurrence, got {n_steps}")
    words = sentences.permute(0, 3, 2, 1).contiguous()  # the entry, the word, the sample: long rows make fast products
    score, n_state = _score(parameters, words)
    # One state, and one context, serve all samples until the first look enters the state.
    state, context, taken = words.new_ones(len(words), n_state, 1), words.new_zeros(*words.shape[:2], 1), []
    for k in range(n_steps):
        logits = score(state)
        weights = torch.softmax(logits, 1)  # over the last axis, of a few words, it takes twenty times as long
        found = (weights.unsqueeze(1) * words).sum(2)
        taken.append(AttentionStep(logits.mT, weights.mT, found.mT))
        if k < n_steps - 1:
            state = torch.tanh(parameters["state_state"] @ state + parameters["state_context"] @ context)
            context = found
    return taken


def _score(parameters: Parameters, words: Tensor) -> tuple[Callable[[Tensor], Tensor], int]:
    """The score of all words as a function of the state ``(members, entries, samples or 1)``, and its entries."""
    if "score_out" not in parameters:
        matrix = parameters["score_word"]
        return lambda state: ((matrix.mT @ state).unsqueeze(2) * words).sum(1), matrix.shape[1]
    # tanh(u) = 2 sigmoid(2 u) - 1, which torch computes in a sixth of the time.
    out, heard = 2 * parameters["score_out"].unsqueeze(1), 2 * parameters["score_word"] @ words.flatten(2)
    heard, seen = heard.unflatten(2, words.shape[2:]), 2 * parameters["score_state"]

    def additive(state: Tensor) -> Tensor:
        units = (heard + (seen @ state).unsqueeze(2)).sigmoid_()
        return (out @ units.flatten(2) - out.sum(2, keepdim=True) / 2).view_as(units[:, 0])

    return additive, seen.shape[2]


def read(parameters: Parameters, features: Float[Tensor, "members samples features"]) -> Tensor:
    r"""Return $w^{(2)\top}\phi(w^{(1)}c)$, ReLU for $\phi$: what the two layers answer to features $c$."""
    return ((features @ parameters["hidden"].mT).relu() @ parameters["decoder"].unsqueeze(2)).squeeze(2)


def predict(parameters: Parameters, sentences: Tensor, n_steps: int) -> Float[Tensor, "members samples"]:
    """Return what recurrent attention answers after its last look; the arguments are those of :func:`looks`."""
    return read(parameters, looks(parameters, sentences, n_steps)[-1].context)


def attention_penalty(penalty: Penalty, logits: Float[Tensor, "members samples words"]) -> Float[Tensor, " members"]:
    r"""Return a penalty on attention, mean over samples, for the scores $e$ of the words, ``logits``.

    With weights $\alpha=\mathrm{softmax}(e)$: ``l1_weights`` is $\sum_j|\alpha_j|$, which is 1 whatever the scores are;
    ``entropy`` is $-\sum_j\alpha_j\log\alpha_j$: it makes attention peaked; ``l1_scores`` is $\frac1p\sum_j|e_j|$ and
    ``l2_weights`` is $\sum_j\alpha_j^2$: they make attention uniform.

    Raises:
        ValueError: If the penalty is unknown.

    Example:
        >>> attention_penalty("l2_weights", torch.zeros(1, 1, 4)).item()
        0.25
    """
    weights = torch.softmax(logits, -1)
    if penalty == "l1_weights":
        return weights.abs().sum(-1).mean(1)
    if penalty == "entropy":
        return -(weights * torch.log_softmax(logits, -1)).sum(-1).mean(1)
    if penalty == "l1_scores":
        return logits.abs().mean((1, 2))
    if penalty == "l2_weights":
        return weights.square().sum(-1).mean(1)
    raise ValueError(f"penalty: expected one of {', '.join(get_args(Penalty))}, got {penalty!r}")
