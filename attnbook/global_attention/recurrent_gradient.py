r"""Loss and gradient of recurrent attention in closed form, and penalties on its attention weights.

With residual $u$ and $h=\phi(w^{(1)}c_T)$ the gradient at the last context is $g_T = w^{(1)\top}(w^{(2)}u\odot h')$.
From a gradient $g$ at a context, the one at the scores is $\alpha_j\,(g^\top x^j - g^\top c)$; from there it goes
through the score to the state, through $\tanh$ to the earlier state and context, and so on. The context $c_{T-1}$
reaches no answer and is not computed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.global_attention.recurrent_networks import Score, score, summed_like

__all__ = ["Penalty", "loss_and_gradient", "penalty_and_gradient", "read_loss_and_gradient"]

Penalty: TypeAlias = Literal["l1_weights", "entropy", "l1_scores"]


class _Step(NamedTuple):
    """What the way back needs of a step; no look where its context reaches no answer."""

    state: Tensor
    context: Tensor
    look: tuple[Tensor, Tensor, Tensor, Tensor] | None


def read_loss_and_gradient(
    parameters: Parameters,
    batch: tuple[Float[Tensor, "members samples features"], Float[Tensor, "members samples"]],
) -> tuple[Float[Tensor, " members"], Parameters]:
    """Return the mean squared error of two layers on given features, and its gradient.

    Args:
        parameters: ``hidden (members, width, features)`` and ``decoder (members, width)``.
        batch: Features and labels.

    Returns:
        The losses and their gradients.
    """
    features, labels = batch
    losses, gradients, _ = _read_back(parameters, features.mT, labels)
    return losses, gradients


def loss_and_gradient(
    parameters: Parameters,
    batch: tuple[Float[Tensor, "members samples words dimension"], Float[Tensor, "members samples"]],
    n_steps: int,
    *,
    penalty: Penalty = "entropy",
    strength: Float[Tensor, " members"] | None = None,
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the mean squared error of each member and the gradient of error plus penalty.

    Args:
        parameters: As for :func:`~attnbook.global_attention.recurrent_networks.looks`.
        batch: Sentences and labels.
        n_steps: Looks $T$.
        penalty: Which penalty on the last look; see :func:`penalty_and_gradient`.
        strength: Its weight for each member; default none.

    Returns:
        The losses, without the penalty, and the gradients, with it.
    """
    sentences, labels = batch
    words = sentences.permute(0, 3, 1, 2).contiguous()
    scored = score(parameters, words)
    state, context = scored.start, words.new_zeros(*words.shape[:2], 1)
    steps: list[_Step] = []
    for step in range(1, n_steps + 1):
        look = None
        if step != n_steps - 1:
            logits, kept = scored(state)
            weights = torch.softmax(logits, -1)
            look = (logits, kept, weights, (weights.unsqueeze(1) * words).sum(3))
        steps.append(_Step(state, context, look))
        if step < n_steps:
            state = torch.tanh(parameters["state_state"] @ state + parameters["state_context"] @ context)
            context = look[3] if look else context
    assert look is not None
    losses, gradients, at_context = _read_back(parameters, look[3], labels)
    at_logits = _through_softmax(at_context, look, words)
    if strength is not None:
        at_logits += penalty_and_gradient(penalty, look[0])[1] * strength[:, None, None]
    _steps_back(parameters, gradients, steps, at_logits, scored, words)
    return losses, gradients


def penalty_and_gradient(
    penalty: Penalty, logits: Float[Tensor, "members samples words"]
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members samples words"]]:
    r"""Return a penalty on attention, mean over samples, and its gradient at the scores $e$.

    With weights $\alpha=\mathrm{softmax}(e)$: ``l1_weights`` is $\sum_j|\alpha_j|$, which is 1 whatever the scores are;
    ``entropy`` is $H=-\sum_j\alpha_j\log\alpha_j$, with gradient
    $-\alpha_j(\log\alpha_j+H)$: it makes attention peaked;
    ``l1_scores`` is $\frac1p\sum_j|e_j|$, the $\ell_1$ norm before the normalisation: it makes attention uniform.

    Args:
        penalty: Which one.
        logits: Scores of the words.

    Returns:
        The penalties and their gradients.

    Raises:
        ValueError: If the penalty is unknown.

    Example:
        >>> value, gradient = penalty_and_gradient("l1_weights", torch.tensor([[[0.0, 2.0, -1.0]]]))
        >>> round(value.item(), 6), bool(gradient.abs().max() < 1e-6)
        (1.0, True)
    """
    if penalty not in get_args(Penalty):
        raise ValueError(f"penalty: expected one of {', '.join(get_args(Penalty))}, got {penalty!r}")
    samples, words = logits.shape[1:]
    if penalty == "l1_scores":
        return logits.abs().mean((1, 2)), logits.sign() / (samples * words)
    weights, logs = torch.softmax(logits, -1), torch.log_softmax(logits, -1)
    if penalty == "l1_weights":
        norm = weights.abs().sum(-1, keepdim=True)
        return norm.mean((1, 2)), weights * (weights.sign() - norm) / samples
    entropy = -(weights * logs).sum(-1, keepdim=True)
    return entropy.mean((1, 2)), -weights * (logs + entropy) / samples


def _read_back(
    parameters: Parameters,
    features: Float[Tensor, "members features samples"],
    labels: Float[Tensor, "members samples"],
) -> tuple[Tensor, Parameters, Tensor]:
    """Loss, gradients of the two layers, gradient at the features."""
    hidden, decoder = parameters["hidden"], parameters["decoder"]
    units = (hidden @ features).relu_()
    residual = (decoder.unsqueeze(1) @ units).squeeze(1) - labels
    losses = residual.square().mean(1)
    residual *= 2.0 / residual.shape[1]
    at_decoder = (units @ residual.unsqueeze(2)).squeeze(2)
    # sign(units) is the derivative of ReLU, 0 at 0.
    at_units = units.sign_().mul_(residual.unsqueeze(1)).mul_(decoder.unsqueeze(2))
    return losses, {"hidden": at_units @ features.mT, "decoder": at_decoder}, hidden.mT @ at_units


def _through_softmax(at_context: Tensor, look: tuple[Tensor, Tensor, Tensor, Tensor], words: Tensor) -> Tensor:
    r"""The gradient at the scores, $\alpha_j(g^\top x^j - g^\top c)$."""
    _, _, weights, found = look
    along = (at_context.unsqueeze(3) * words).sum(1)
    return along.sub_((at_context * found).sum(1).unsqueeze(2)).mul_(weights)


def _steps_back(
    parameters: Parameters,
    gradients: Parameters,
    steps: list[_Step],
    at_logits: Tensor,
    scored: Score,
    words: Tensor,
) -> None:
    """Go back through all steps, adding up the gradients of score and recurrence."""

    def add(new: Parameters) -> None:
        for name, gradient in new.items():
            gradients[name] = gradients[name].add_(gradient) if name in gradients else gradient

    last = steps[-1]
    assert last.look is not None
    at_state, new = scored.back(last.state, last.look[1], at_logits)
    add(new)
    at_context: Tensor | None = None
    for step, after in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
        # after.state = tanh(U step.state + W step.context)
        at_sum = at_state * (1 - after.state.square())
        at_state_sum, at_context_sum = summed_like(at_sum, step.state), summed_like(at_sum, step.context)
        add({"state_state": at_state_sum @ step.state.mT, "state_context": at_context_sum @ step.context.mT})
        at_state = parameters["state_state"].mT @ at_state_sum
        if step.look is not None and at_context is not None:
            at_earlier, new = scored.back(step.state, step.look[1], _through_softmax(at_context, step.look, words))
            add(new)
            at_state = at_state + at_earlier
        at_context = parameters["state_context"].mT @ at_context_sum
