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

In the unit the induction requires $C_1\le-0.8$ (Lemma E.4 with Claim E.5) and allows 0.1 to each of the others (Lemma
E.3, Claims E.6 and E.7), so that their sum is at most $-\frac12$ (Lemma E.2). In the text available to us the equations
are missing: these formulas and numbers are our reconstruction.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Inputs, Labels, Networks, check_shape, logits, predict

__all__ = ["loss_terms"]


@torch.no_grad()
def loss_terms(
    before: Networks,
    after: Networks,
    inputs: Inputs,
    labels: Labels,
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
    if not before.activation == after.activation == "softmax":
        raise ValueError(f"before, after: expected softmax networks, got {before.activation} and {after.activation}")
    if not torch.equal(before.signs, after.signs):
        raise ValueError("after: expected the networks of before with other first layers; the signs differ")
    moved, start = predict(after, inputs), logits(before, inputs)
    change = logits(after, inputs) - start
    neurons = torch.softmax(start, dim=2).mul_(before.width)
    outputs, grown = torch.bmm(before.signs, neurons.mT), torch.expm1(change)
    check_shape("labels", labels, outputs.shape)
    parts = (
        -moved * (neurons * grown).mean(2)[:, None],
        torch.bmm(before.signs, (neurons * change).mT),
        torch.bmm(before.signs, (neurons * (grown - change)).mT),
    )
    terms = [2 * ((outputs - labels) * part).sum((1, 2)) for part in parts]
    return torch.stack([*terms, (moved - outputs).square().sum((1, 2))], dim=1)
