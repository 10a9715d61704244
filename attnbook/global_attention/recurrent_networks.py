r"""Recurrent attention (Appendix A of the paper), and the two layers that read what it found.

A sentence is looked at $T$ times. With a state $s_k$, weights $\alpha_k$ of the words and a context $c_k$,

.. math::

    s_k = f(s_{k-1}, c_{k-1}),\quad \alpha_k = \mathrm{softmax}_j\,\mathrm{score}(s_{k-1}, x^j),\quad
    c_k = \sum_j \alpha_{kj}x^j,\quad y = w^{(2)\top}\phi(w^{(1)}c_T).

The paper leaves $f$, score, $s_0$ and $c_0$ open. Here $f(s,c)=\tanh(Us+Wc)$, $s_0$ is all ones, $c_0=0$, nothing has
a bias, and the score is additive, $v^\top\tanh(Ps+Rx)$, as Bahdanau, Cho and Bengio have it, or the product
$s^\top Rx$.

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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["AttentionStep", "Recurrence", "initial_parameters", "looks", "read"]


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a recurrent attention model.

    Attributes:
        n_steps: Looks $T$.
        state: Entries of the state.
        score: Hidden units of the additive score; 0 for the product of state and word.

    Raises:
        ValueError: If a size is too small.
    """

    n_steps: int
    state: int
    score: int

    def __post_init__(self) -> None:
        for name, least in {"n_steps": 1, "state": 1, "score": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")


class AttentionStep(NamedTuple):
    """What one step sees.

    Attributes:
        weights: Attention on the words.
        context: The weighted mean of the words.
    """

    weights: Float[Tensor, "members samples words"]
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

    Returns:
        Arrays by name, as in the table of this module.
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

    Returns:
        A look for each step.

    Raises:
        ValueError: If ``n_steps`` is not positive, or is above 1 for parameters without a recurrence.
    """
    if n_steps < 1 or (n_steps > 1 and "state_state" not in parameters):
        raise ValueError(f"n_steps: expected 1, or more with parameters of a recurrence, got {n_steps}")
    p, words = parameters, sentences.permute(0, 3, 2, 1).contiguous()  # samples last: long rows make fast products
    additive = "score_out" in p
    heard = (p["score_word"] @ words.flatten(2)).unflatten(2, words.shape[2:]) if additive else words
    n_state = p["score_state"].shape[2] if additive else p["score_word"].shape[1]
    # One state, and one context, serve all samples until the first look enters the state.
    state, context = words.new_ones(len(words), n_state, 1), words.new_zeros(*words.shape[:2], 1)
    taken: list[AttentionStep] = []
    for _ in range(n_steps):
        if additive:
            units = (heard + (p["score_state"] @ state).unsqueeze(2)).tanh()
            logits = (p["score_out"].unsqueeze(1) @ units.flatten(2)).view_as(units[:, 0])
        else:
            logits = ((p["score_word"].mT @ state).unsqueeze(2) * heard).sum(1)
        if len(taken) + 1 < n_steps:
            state = (p["state_state"] @ state + p["state_context"] @ context).tanh()
        weights = torch.softmax(logits, 1)
        context = (weights.unsqueeze(1) * words).sum(2)
        taken.append(AttentionStep(weights.mT, context.mT))
    return taken


def read(parameters: Parameters, features: Float[Tensor, "members samples features"]) -> Tensor:
    r"""Return $w^{(2)\top}\phi(w^{(1)}c)$, ReLU for $\phi$: what the two layers answer.

    Args:
        parameters: With ``hidden`` and ``decoder``.
        features: What they read, $c$.

    Returns:
        Answers ``(members, samples)``.
    """
    return ((features @ parameters["hidden"].mT).relu() @ parameters["decoder"].unsqueeze(2)).squeeze(2)
