r"""Loss and gradient of recurrent attention in closed form, and penalties on its attention.

With residual $u$ and $h=\phi(w^{(1)}c_T)$ the gradient at the last context is $w^{(1)\top}(w^{(2)}u\odot h')$. From a
gradient $g$ at a context, the one at the scores is $\alpha_j\,(g^\top x^j - g^\top c)$; from there it goes through the
score to the state, through $\tanh$ to the earlier state and context, and so on.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.global_attention.recurrent_networks import Look, Score, Step, score, steps, summed_like

__all__ = ["Penalty", "loss_and_gradient", "penalty_and_gradient", "read_loss_and_gradient"]

Penalty: TypeAlias = Literal["l1_weights", "entropy", "l1_scores", "l2_weights"]


def read_loss_and_gradient(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
    """Return the mean squared error of two layers on features ``(members, samples, features)``, and its gradient."""
    losses, gradients, _ = _read_back(parameters, batch[0].mT, batch[1])
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
    words = batch[0].permute(0, 3, 1, 2).contiguous()
    scored = score(parameters, words)
    taken = steps(scored, parameters, n_steps, idle=False)
    last = taken[-1].look
    assert last is not None
    losses, gradients, at_context = _read_back(parameters, last.context, batch[1])
    at_logits = _through_softmax(at_context, last, words)
    if strength is not None:
        at_logits += penalty_and_gradient(penalty, last.logits)[1] * strength[:, None, None]
    return losses, gradients | _steps_back(parameters, taken, at_logits, scored)


def penalty_and_gradient(
    penalty: Penalty, logits: Float[Tensor, "members samples words"]
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members samples words"]]:
    r"""Return a penalty on attention, mean over samples, and its gradient at the scores $e$.

    With weights $\alpha=\mathrm{softmax}(e)$: ``l1_weights`` is $\sum_j|\alpha_j|$, which is 1 whatever the scores are;
    ``entropy`` is $H=-\sum_j\alpha_j\log\alpha_j$, with gradient $-\alpha_j(\log\alpha_j+H)$: it makes attention
    peaked; ``l1_scores`` is $\frac1p\sum_j|e_j|$ and ``l2_weights`` is $\sum_j\alpha_j^2$: they make attention uniform.

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
    if penalty == "entropy":
        value = -(weights * logs).sum(-1, keepdim=True)
        return value.mean((1, 2)), -weights * (logs + value) / samples
    value = (weights.abs() if penalty == "l1_weights" else weights.square()).sum(-1, keepdim=True)
    slope = weights.sign() if penalty == "l1_weights" else 2 * weights
    return value.mean((1, 2)), weights * (slope - (weights * slope).sum(-1, keepdim=True)) / samples


def _read_back(parameters: Parameters, features: Tensor, labels: Tensor) -> tuple[Tensor, Parameters, Tensor]:
    """Loss, gradients of the two layers, gradient at the features ``(members, features, samples)``."""
    hidden, decoder = parameters["hidden"], parameters["decoder"]
    units = (hidden @ features).relu_()
    residual = (decoder.unsqueeze(1) @ units).squeeze(1) - labels
    losses = residual.square().mean(1)
    residual *= 2.0 / residual.shape[1]
    at_decoder = (units @ residual.unsqueeze(2)).squeeze(2)
    # sign(units) is the derivative of ReLU, 0 at 0.
    at_units = units.sign_().mul_(residual.unsqueeze(1)).mul_(decoder.unsqueeze(2))
    return losses, {"hidden": at_units @ features.mT, "decoder": at_decoder}, hidden.mT @ at_units


def _through_softmax(at_context: Tensor, look: Look, words: Tensor) -> Tensor:
    r"""The gradient at the scores, $\alpha_j(g^\top x^j - g^\top c)$."""
    along = (at_context.unsqueeze(3) * words).sum(1)
    return along.sub_((at_context * look.context).sum(1).unsqueeze(2)).mul_(look.weights)


def _steps_back(parameters: Parameters, taken: list[Step], at_logits: Tensor, scored: Score) -> Parameters:
    """Go back through all steps: the gradients of score and recurrence."""
    parts: dict[str, list[Tensor]] = defaultdict(list)

    def score_back(step: Step, at_logits: Tensor) -> Tensor:
        assert step.look is not None
        at_state, new = scored.back(step.state, step.look.kept, at_logits)
        for name, gradient in new.items():
            parts[name].append(gradient)
        return at_state

    at_state = score_back(taken[-1], at_logits)
    at_context: Tensor | None = None
    for after, step in pairwise(reversed(taken)):
        # after.state = tanh(U step.state + W step.context)
        at_sum = at_state * (1 - after.state.square())
        at_own, at_found = summed_like(at_sum, step.state), summed_like(at_sum, step.context)
        parts["state_state"].append(at_own @ step.state.mT)
        parts["state_context"].append(at_found @ step.context.mT)
        at_state = parameters["state_state"].mT @ at_own
        if step.look is not None and at_context is not None:
            at_state = at_state + score_back(step, _through_softmax(at_context, step.look, scored.words))
        at_context = parameters["state_context"].mT @ at_found
    return {name: functools.reduce(Tensor.add_, gradients) for name, gradients in parts.items()}
