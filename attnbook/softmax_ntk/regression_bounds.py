r"""How far a network in training can be from its kernel machine: Theorem F.2, and a form of it without logarithms.

=============================  ==========================  ======================================================
paper                          name here                   meaning
=============================  ==========================  ======================================================
$n$, $d$, $m$                  ``n_samples``, ...          samples, outputs, neurons
$H^*$, $\lambda$               ``smallest_eigenvalue``     kernel of the training points at the start, assumed
                                                           positive definite; its smallest eigenvalue
$\|Y\|_F$                      ``label_norm``              norm of what is left to learn, $\|Y-F(0)\|_F$
$K_0(x,X)$                     ``cross_norm``              kernel between a point and the training points; its norm
$\epsilon_H$                   ``kernel_drift``            $\sup_\tau\|H(\tau)-H^*\|_F$
$\epsilon_{test}$              ``point_drift``             $\sup_\tau\|K_\tau(x,X)-K_0(x,X)\|$
=============================  ==========================  ======================================================

In the text available to us the equations are missing; the form with logarithms is our reconstruction of the paper's,
with hidden constants 1, the form without them is ours. Arguments are broadcast against each other.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["coupling_bound", "coupling_bound_of_theorem"]


def coupling_bound(
    smallest_eigenvalue: Tensor, *, label_norm: Tensor, cross_norm: Tensor, kernel_drift: Tensor, point_drift: Tensor
) -> Tensor:
    r"""Return $2\epsilon_{test}\|Y\|_F/\lambda + 4\|K_0(x,X)\|\,\epsilon_H\|Y\|_F/\lambda^2$.

    It bounds $|F_{nn}(x) - F_{ntk}(x)|$ for gradient flow at every time, if $\epsilon_H\le\lambda/2$ (this book's, by
    Duhamel's formula; it replaces the squared logarithm of Theorem F.2 in the form we reconstructed).

    Example:
        >>> import torch
        >>> one, drift = torch.tensor(1.0), torch.tensor(0.01)
        >>> bound = coupling_bound(one / 2, label_norm=4 * one, cross_norm=one, kernel_drift=drift, point_drift=drift)
        >>> round(bound.item(), 4)
        0.8
    """
    at_the_point = 2 * point_drift * label_norm / smallest_eigenvalue
    return at_the_point + 4 * cross_norm * kernel_drift * label_norm / smallest_eigenvalue**2


def coupling_bound_of_theorem(
    smallest_eigenvalue: Tensor, *, n_samples: int, n_outputs: int, width: int, kernel_drift: Tensor,
    point_drift: Tensor,
) -> Tensor:  # fmt: skip
    r"""Return $\frac{\sqrt{nd}}\lambda(\epsilon_{test}+\frac1\lambda\log^2(\frac{nd}{\epsilon_Hm\lambda})\epsilon_H)$.

    Example:
        >>> import torch
        >>> half, tenth = torch.tensor([0.5, 0.1]).double()
        >>> sizes = {"n_samples": 16, "n_outputs": 1, "width": 64}
        >>> round(coupling_bound_of_theorem(half, **sizes, kernel_drift=half, point_drift=tenth).item(), 3)
        0.8
    """
    size = n_samples * n_outputs
    logarithm = (size / (kernel_drift * width * smallest_eigenvalue)).log()
    return size**0.5 / smallest_eigenvalue * (point_drift + logarithm**2 * kernel_drift / smallest_eigenvalue)
