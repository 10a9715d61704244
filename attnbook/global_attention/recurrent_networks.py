r"""Recurrent attention (Appendix A of the paper) and the two layers that read what it found.

A sentence is looked at $T$ times. At step $k$ every word gets a score that depends on the word and on a state; softmax
turns scores into weights $\alpha_{kj}$; the weighted mean of the words is the context $c_k$. With the paper's indices

.. math::

    s_k = f(s_{k-1}, c_{k-1}),\quad \alpha_k = \mathrm{softmax}_j\,\mathrm{score}(s_{k-1}, x^j),\quad
    c_k = \sum_j \alpha_{kj}x^j,\quad y = w^{(2)\top}\phi(w^{(1)}c_T).

The paper leaves $f$, score, $s_0$ and $c_0$ open. Here $f(s,c)=\tanh(Us+Wc)$, $s_0$ is all ones, $c_0=0$, nothing has
a bias, and the score is additive, $v^\top\tanh(Ps+Rx)$, as Bahdanau, Cho and Bengio have it, or the product
$s^\top Rx$. Inside, words are stored with the entry of the word before sample and word.

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

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.global_attention.recurrent_bounds import Recurrence

__all__ = ["AdditiveScore", "Look", "ProductScore", "Score", "Step", "initial_parameters", "looks", "predict", "read",
           "score", "steps", "summed_like"]  # fmt: skip


class Look(NamedTuple):
    """What one step sees.

    Attributes:
        logits: Scores of the words, ``(members, samples, words)``.
        weights: Their softmax.
        context: The weighted mean of the words, ``(members, dimension, samples)``.
        kept: What the score needs for its way back.
    """

    logits: Float[Tensor, "members samples words"]
    weights: Float[Tensor, "members samples words"]
    context: Float[Tensor, "members dimension samples"]
    kept: Tensor


class Step(NamedTuple):
    """One step: the state $s_{k-1}$ and context $c_{k-1}$ that it starts from, and its look where it was taken."""

    state: Tensor
    context: Tensor
    look: Look | None


def initial_parameters(
    recurrence: Recurrence | None, n_features: int, width: int, *, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw initial weights of one network: every matrix with variance 1 / fan-in, the two layers first.

    Args:
        recurrence: Sizes of score and recurrence; None for a network whose features are given.
        n_features: Entries of what the two layers read; for recurrent attention, of a word.
        width: Hidden units of the two layers.
        rng: Source of randomness.

    Returns:
        The parameters, without member axis.
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


class AdditiveScore:
    r"""The score $v^\top\tanh(Ps+Rx)$ of every word ``(members, dimension, samples, words)``, and the way back."""

    def __init__(self, parameters: Parameters, words: Tensor) -> None:
        self.parameters, self.words = parameters, words
        self.heard = (parameters["score_word"] @ words.flatten(2)).unflatten(2, words.shape[2:])
        self.start = words.new_ones(len(words), parameters["score_state"].shape[2], 1)

    def __call__(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores, given one state per sample or one for all, and what the way back needs."""
        units = torch.tanh(self.heard + (self.parameters["score_state"] @ state).unsqueeze(3))
        return (self.parameters["score_out"].unsqueeze(1) @ units.flatten(2)).view_as(units[:, 0]), units

    def back(self, state: Tensor, units: Tensor, at_logits: Tensor) -> tuple[Tensor, Parameters]:
        """Return the gradients at the state and at the weights; ``units`` is written over."""
        at_out = (units.flatten(2) @ at_logits.flatten(1).unsqueeze(2)).squeeze(2)
        at_sum = units.square_().neg_().add_(1.0).mul_(at_logits.unsqueeze(1))
        at_sum *= self.parameters["score_out"][:, :, None, None]
        at_asked = summed_like(at_sum.sum(3), state)
        at_word = at_sum.flatten(2) @ self.words.flatten(2).mT
        at_weights = {"score_out": at_out, "score_word": at_word, "score_state": at_asked @ state.mT}
        return self.parameters["score_state"].mT @ at_asked, at_weights


class ProductScore:
    r"""The score $s^\top Rx$ of every word ``(members, dimension, samples, words)``, and the way back."""

    def __init__(self, parameters: Parameters, words: Tensor) -> None:
        self.matrix, self.words = parameters["score_word"], words
        self.start = words.new_ones(len(words), self.matrix.shape[1], 1)

    def __call__(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores, given one state per sample or one for all, and the words, for the way back."""
        return ((self.matrix.mT @ state).unsqueeze(3) * self.words).sum(1), self.words

    def back(self, state: Tensor, words: Tensor, at_logits: Tensor) -> tuple[Tensor, Parameters]:
        """Return the gradients at the state and at the weights."""
        at_query = summed_like((at_logits.unsqueeze(1) * words).sum(3), state)
        return self.matrix @ at_query, {"score_word": state @ at_query.mT}


Score = AdditiveScore | ProductScore


def score(parameters: Parameters, words: Float[Tensor, "members dimension samples words"]) -> Score:
    """Return the score that these parameters belong to: additive if they have ``score_out``, else the product."""
    return (AdditiveScore if "score_out" in parameters else ProductScore)(parameters, words)


def summed_like(gradient: Tensor, state: Tensor) -> Tensor:
    """Return the gradient ``(members, entries, samples)`` at a state: summed where one state served all samples."""
    return gradient if state.shape[2] == gradient.shape[2] else gradient.sum(2, keepdim=True)


def steps(scored: Score, parameters: Parameters, n_steps: int, *, idle: bool = True) -> list[Step]:
    """Look ``n_steps`` times; without ``idle`` the last look but one, whose context reaches no answer, is left out."""
    state, context = scored.start, scored.words.new_zeros(*scored.words.shape[:2], 1)
    taken = []
    for k in range(1, n_steps + 1):
        look = _look(scored, state) if idle or k != n_steps - 1 else None
        taken.append(Step(state, context, look))
        if k < n_steps:
            state = torch.tanh(parameters["state_state"] @ state + parameters["state_context"] @ context)
            context = look.context if look else context
    return taken


def _look(scored: Score, state: Tensor) -> Look:
    logits, kept = scored(state)
    weights = torch.softmax(logits, -1)
    return Look(logits, weights, (weights.unsqueeze(1) * scored.words).sum(3), kept)


def looks(
    parameters: Parameters, sentences: Float[Tensor, "members samples words dimension"], n_steps: int
) -> list[Look]:
    """Look at sentences step by step; autograd works through it.

    Args:
        parameters: As :func:`initial_parameters`, with a leading member axis.
        sentences: Sentences of each member, one word per row.
        n_steps: Number of looks $T$, at least 1.

    Returns:
        The look of each step.

    Raises:
        ValueError: If ``n_steps`` is not positive, or is above 1 for parameters without a recurrence.
    """
    if n_steps < 1 or (n_steps > 1 and "state_state" not in parameters):
        raise ValueError(f"n_steps: expected 1, or more with parameters of a recurrence, got {n_steps}")
    taken = steps(score(parameters, sentences.permute(0, 3, 1, 2)), parameters, n_steps)
    return [step.look for step in taken if step.look]


def read(parameters: Parameters, features: Float[Tensor, "members samples features"]) -> Tensor:
    r"""Return $w^{(2)\top}\phi(w^{(1)}c)$, ReLU for $\phi$: what the two layers answer to features $c$."""
    return ((features @ parameters["hidden"].mT).relu() @ parameters["decoder"].unsqueeze(2)).squeeze(2)


def predict(parameters: Parameters, sentences: Tensor, n_steps: int) -> Float[Tensor, "members samples"]:
    """Return what recurrent attention answers after its last look; the arguments are those of :func:`looks`."""
    return read(parameters, looks(parameters, sentences, n_steps)[-1].context.mT)
