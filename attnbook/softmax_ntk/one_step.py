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
=====================  ============================================================================================

In the text available to us the equations are missing: these formulas are our reconstruction.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Networks, predict

__all__ = ["loss_terms"]


@torch.no_grad()
def loss_terms(
    before: Networks,
    after: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
) -> Float[Tensor, "members terms"]:
    r"""Split the change of $\|F-Y\|_F^2$ from one softmax network to another into the terms of Lemma E.1.

    With $S$ the softmax and $q$ the change of the logits, the output changes by $v_0+v_1+v_2$, where
    $v_1=m\sum_ra_{\ell r}S_{ir}q_{ir}$, $v_2=m\sum_ra_{\ell r}S_{ir}(e^{q_{ir}}-1-q_{ir})$ and
    $v_0=m\sum_ra_{\ell r}(\alpha_i(\tau+1)^{-1}-\alpha_i(\tau)^{-1})e^{\langle w_r(\tau+1),x_i\rangle}$. The last
    one is computed as $-F_{\ell i}(\tau+1)\,(\alpha_i(\tau+1)/\alpha_i(\tau)-1)$, which is the same, without overflow.

    Args:
        before: Softmax networks before the step.
        after: The same networks after it; any step will do.
        inputs: Samples of each of them.
        labels: Their labels.

    Returns:
        $C_0$, $C_1$, $C_2$, $C_3$ of each network; their sum is the change of $\|F-Y\|_F^2$.

    Raises:
        ValueError: If the networks are not softmax networks, or the shapes do not fit.

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
    outputs, moved = predict(before, inputs), predict(after, inputs)
    if labels.shape != outputs.shape:
        raise ValueError(f"labels: expected {tuple(outputs.shape)}, got {tuple(labels.shape)}")
    logits = torch.bmm(inputs, before.first_layer)
    change = torch.bmm(inputs, after.first_layer) - logits
    neurons = torch.softmax(logits, dim=2).mul_(before.width)
    normaliser = (neurons * torch.expm1(change)).mean(2)  # its relative change
    parts = (
        -moved * normaliser[:, None],
        torch.bmm(before.signs, (neurons * change).mT),
        torch.bmm(before.signs, (neurons * (torch.expm1(change) - change)).mT),
    )
    terms = [2 * ((outputs - labels) * part).sum((1, 2)) for part in parts]
    return torch.stack([*terms, (moved - outputs).square().sum((1, 2))], dim=1)
