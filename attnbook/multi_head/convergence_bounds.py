r"""What Theorem 1 and Corollary 2 promise for gradient descent, and what they ask for, as the text prints it.

===============================  ====================  =========================================================
paper                            name here             meaning, range
===============================  ====================  =========================================================
$\gamma$                         ``margin``            tangent-kernel margin at the start (P3), norm $\sqrt2$
$B_\Phi$                         ``output_bound``      bound on outputs at the start, at least 1 (P2)
$\Vert\tilde\theta-\dots\Vert$   ``distance``          distance $D$ of a target from the start, at least 0
$\Vert\tilde\theta\Vert$         ``head_norm``         norm $B$ of the largest head of the target, at least 0
$\rho$                           ``smoothness``        one over the step size that Theorem 1 allows
$T$, $d$, $R$, $K$, $H$          ``n_tokens``, ...     tokens, dimension, token norm, steps, heads, at least 1
$\eta$                           ``step_size``         step size, positive
===============================  ====================  =========================================================

Condition (3) hides a constant; :func:`order_heads` sets it to 1. :func:`sketch_heads` puts the printed pieces of
Section 6.1 together instead, and :func:`smoothness` is printed there with all its constants. Numbers of heads are not
rounded. Numbers outside their range are a ValueError that names them.
"""

from __future__ import annotations

import math

import numpy as np

from attnbook.multi_head.checks import at_least, positive
from attnbook.multi_head.curvature_bounds import Numbers, loss_constants

__all__ = ["order_heads", "regret_bound", "sketch_heads", "smoothness", "target_distance", "theorem_2"]


def regret_bound(*, target_loss: Numbers, distance: Numbers, step_size: Numbers, steps: Numbers) -> Numbers:
    r"""Return $2\hat L(\tilde\theta)+\frac{5\|\tilde\theta-\tilde\theta^{(0)}\|^2}{4\eta K}$, eq. (4) of Theorem 1.

    The bound on the average training loss, for the loss and the distance of a target; with loss $1/K$ and distance
    $g_0(1/K)$ that of Corollary 2.
    """
    at_least(1, steps=steps)
    positive(step_size=step_size)
    return 2 * target_loss + 5 * distance**2 / (4 * step_size * steps)


def order_heads(
    *, n_tokens: int, dimension: int, token_norm: Numbers, head_norm: Numbers, distance: Numbers
) -> Numbers:
    r"""Return $(d\sqrt TR^5BD^3)^2$, the heads of condition (3) with its hidden constant set to 1.

    With $B_2^2$ for ``head_norm`` and $g_0(1/K)$ for ``distance`` this is the condition of Corollary 2.
    """
    at_least(1, n_tokens=n_tokens, dimension=dimension, token_norm=token_norm)
    at_least(0, head_norm=head_norm, distance=distance)
    return (dimension * math.sqrt(n_tokens) * token_norm**5 * head_norm * distance**3) ** 2


def sketch_heads(
    *, n_tokens: int, dimension: int, token_norm: Numbers, head_norm: Numbers, distance: Numbers
) -> Numbers:
    r"""Return $(18\,\beta_3D^2)^2$ or 1, the heads that the proof sketch of Section 6.1 needs, constants included.

    The sketch uses $\sqrt H\ge2\beta_3\|\theta-\theta_k\|^2$, eq. (18), and $\|\theta_k-\theta\|\le3D$ (Lemma 10); with
    these no head is larger than $B+3D$, where $\beta_3=2\sqrt{Td}\,R^3(3\sqrt dR^2(B+3D)+1)$ (Corollary 1).
    """
    at_least(0, head_norm=head_norm, distance=distance)
    sizes = {"n_tokens": n_tokens, "dimension": dimension, "n_heads": 1, "token_norm": token_norm}
    beta_3 = loss_constants(**sizes, largest_head_norm=head_norm + 3 * distance).curvature
    return np.maximum(1.0, (18 * beta_3 * distance**2) ** 2)


def smoothness(
    *, n_tokens: int, dimension: int, n_heads: Numbers, token_norm: Numbers, head_norm: Numbers, distance: Numbers
) -> Numbers:
    r"""Return $\rho$ as Section 6.1 prints it; Theorem 1 allows step sizes up to $\min(1,1/\rho)$.

    .. math:: \rho=\Big(\frac{2\sqrt T\,dR^3}{\sqrt H}+\frac{TR^2}4\Big)\alpha^2,\qquad
              \alpha=3\sqrt dR^2\big[3\sqrt TR^3(3D+B)+2\sqrt TR\big].
    """
    at_least(1, n_tokens=n_tokens, dimension=dimension, n_heads=n_heads, token_norm=token_norm)
    at_least(0, head_norm=head_norm, distance=distance)
    root, r = math.sqrt(n_tokens), token_norm
    alpha = 3 * math.sqrt(dimension) * r**2 * (3 * root * r**3 * (3 * distance + head_norm) + 2 * root * r)
    return (2 * root * dimension * r**3 / n_heads**0.5 + n_tokens * r**2 / 4) * alpha**2


def target_distance(*, steps: Numbers, margin: Numbers, output_bound: Numbers = 1.0) -> Numbers:
    r"""Return $g_0(1/K)=(2B_\Phi+\log K)/\gamma$, how far from the start Corollary 2 puts its target."""
    at_least(1, steps=steps, output_bound=output_bound)
    positive(margin=margin)
    return (2 * output_bound + np.log(steps)) / margin


def theorem_2(
    *, n_samples: Numbers, steps: Numbers, step_size: float, target_loss: Numbers, target_distance: Numbers
) -> Numbers:
    r"""Return $\frac4n\big(2K\hat L(\tilde\theta)+\frac{9\|\tilde\theta-\theta_0\|^2}{4\eta}\big)$, before expectation.

    The bound on the gap, to be averaged over training sets. With a target of loss $1/K$ this is how we read
    Corollary 4, whose statement is in a missing appendix.
    """
    at_least(1, n_samples=n_samples, steps=steps)
    at_least(0, target_loss=target_loss, target_distance=target_distance)
    positive(step_size=step_size)
    return 4 / n_samples * (2 * steps * target_loss + 9 * target_distance**2 / (4 * step_size))
