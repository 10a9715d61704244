r"""What one step of gradient descent does to the loss of a softmax network: the four terms of Lemma E.1.

=====================  ============================================================================================
paper                  meaning
=====================  ============================================================================================
$q_{ir}$               $\langle w_r(\tau+1)-w_r(\tau),x_i\rangle$: how far the step moves the logit of neuron $r$
$\alpha_i$             $\langle e^{W^\top x_i},1\rangle$: the normaliser of sample $i$
$v_0$                  change of the output through the normaliser alone
$v_1$, $v_2$           change through the numerators: first order in $q$, and all higher orders
$C_k$                  $2\langle F-Y,v_k\rangle$ for $k=0,1,2$
$C_3$                  $\|F(\tau+1)-F(\tau)\|_F^2$
unit                   $m\eta\lambda\,\|F-Y\|_F^2$: what the induction counts in; $\lambda$ is that of the start
=====================  ============================================================================================

In the unit the induction asks for $C_1\le-0.8$ (Lemma E.4 with Claim E.5) and allows 0.1 to each of the others (Lemma
E.3, Claims E.6 and E.7), so that their sum is at most $-\frac12$ (Lemma E.2). In the text available to us the equations
are missing: these formulas and numbers are our reconstruction.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, loss_and_gradient, predict

__all__ = ["ALLOWED", "ASKED", "account", "loss_terms"]

# In the unit: what is asked of the first order, and allowed to each other term.
ASKED, ALLOWED = -0.8, 0.1


@torch.no_grad()
def account(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
    step_size: Float[Tensor, " members"],
    *,
    steps: int,
) -> tuple[Float[Tensor, "members steps terms"], Float[Tensor, "members steps"]]:
    r"""Return what every step of gradient descent does to the loss: Lemmas E.1 to E.4 and Claims E.6 and E.7.

    First the terms $C_0$ to $C_3$ in the unit, then $C_1$ over $-2m\eta\,e^\top He$ with $e$ the residual and $H$ the
    kernel before the step. Any softmax network will do, from any start; where its first kernel is singular the unit is
    zero, and the account infinite.

    Args:
        networks: Softmax networks where training starts; they are not changed.
        inputs: Samples of each of them.
        labels: Their labels.
        step_size: $\eta$ of each.
        steps: Steps to take apart, at least 1.

    Raises:
        ValueError: If there is no step; as :func:`loss_terms`.
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least one, got {steps}")
    unit = networks.width * step_size * torch.linalg.eigvalsh(ntk_gram(networks, inputs))[:, 0]
    terms, leading = [], []
    for _ in range(steps):
        loss, gradient = loss_and_gradient(networks, inputs, labels)
        after = replace(networks, first_layer=networks.first_layer - step_size[:, None, None] * gradient)
        change = loss_terms(networks, after, inputs, labels)
        terms.append(change / (2 * unit * loss)[:, None])
        # With the Jacobian J the gradient is J'e, and mH is JJ'.
        leading.append(change[:, 1] / (-2 * step_size * gradient.square().sum((1, 2))))
        networks = after
    return torch.stack(terms, dim=1), torch.stack(leading, dim=1)


@torch.no_grad()
def loss_terms(
    before: Networks,
    after: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
) -> Float[Tensor, "members terms"]:
    r"""Return the terms $C_0$ to $C_3$ of Lemma E.1, which sum to the change of $\|F-Y\|_F^2$ from before to after.

    With $S$ the softmax and $q$ the change of the logits, the output changes by $v_0+v_1+v_2$, where
    $v_1=m\sum_ra_{\ell r}S_{ir}q_{ir}$, $v_2=m\sum_ra_{\ell r}S_{ir}(e^{q_{ir}}-1-q_{ir})$ and
    $v_0=m\sum_ra_{\ell r}(\alpha_i(\tau+1)^{-1}-\alpha_i(\tau)^{-1})e^{\langle w_r(\tau+1),x_i\rangle}$. The last
    one is computed as $-F_{\ell i}(\tau+1)\,(\alpha_i(\tau+1)/\alpha_i(\tau)-1)$, which is the same, without overflow.
    Any step will do.

    Raises:
        ValueError: If the networks are not softmax networks with the same signs, or the shapes do not fit.

    Example:
        >>> from attnbook.softmax_ntk.two_layer import Weights
        >>> import numpy as np
        >>> signs = np.array([[1.0, -1.0]])
        >>> start, end = (Networks.stack("softmax", [Weights(w, signs)]) for w in (np.zeros((1, 2)), np.ones((1, 2))))
        >>> loss_terms(start, end, torch.ones(1, 1, 1).double(), torch.ones(1, 1, 1).double()).abs().tolist()
        [[0.0, 0.0, 0.0, 0.0]]
    """
    if before.activation != "softmax" or after.activation != "softmax":
        raise ValueError(
            f"before, after: the terms are those of softmax networks, got {before.activation} and {after.activation}"
        )
    if before.signs.shape != after.signs.shape or not torch.equal(before.signs, after.signs):
        raise ValueError("after: expected the networks of before with other first layers; the signs differ")
    moved, logits = predict(after, inputs), torch.bmm(inputs, before.first_layer)
    change = torch.bmm(inputs, after.first_layer) - logits
    neurons = torch.softmax(logits, dim=2).mul_(before.width)
    outputs, grown = torch.bmm(before.signs, neurons.mT), torch.expm1(change)
    if labels.shape != outputs.shape:
        raise ValueError(f"labels: expected {tuple(outputs.shape)}, got {tuple(labels.shape)}")
    normaliser = (neurons * grown).mean(2)  # its relative change
    parts = (
        -moved * normaliser[:, None],
        torch.bmm(before.signs, (neurons * change).mT),
        torch.bmm(before.signs, grown.sub_(change).mul_(neurons).mT),
    )
    terms = [2 * ((outputs - labels) * part).sum((1, 2)) for part in parts]
    return torch.stack([*terms, (moved - outputs).square().sum((1, 2))], dim=1)
