r"""How far a network in training can be from its kernel machine: Theorem F.2 in a form without logarithms.

=============================  ==========================  ======================================================
paper                          name here                   meaning
=============================  ==========================  ======================================================
$H^*$, $\lambda$               ``smallest_eigenvalue``     kernel of the training points at the start, assumed
                                                           positive definite; its smallest eigenvalue
$\|Y\|_F$                      ``label_norm``              norm of what is left to learn, $\|Y-F(0)\|_F$
$K_0(x,X)$                     ``cross_norm``              kernel between a point and the training points; its norm
$\epsilon_H$                   ``kernel_drift``            $\sup_\tau\|H(\tau)-H^*\|_F$
$\epsilon_{test}$              ``point_drift``             $\sup_\tau\|K_\tau(x,X)-K_0(x,X)\|$
=============================  ==========================  ======================================================

In the text available to us the equations are missing; the form with logarithms is our reconstruction of the paper's,
the form without them is ours.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

__all__ = ["coupling_bound", "coupling_bound_of_theorem"]


def coupling_bound(
    smallest_eigenvalue: Tensor, *, label_norm: Tensor, cross_norm: Tensor, kernel_drift: Tensor, point_drift: Tensor
) -> Tensor:
    r"""Return $2\epsilon_{test}\|Y\|_F/\lambda + 4\|K_0(x,X)\|\,\epsilon_H\|Y\|_F/\lambda^2$.

    It bounds $|F_{nn}(x) - F_{ntk}(x)|$ for gradient flow at every time, if $\epsilon_H\le\lambda/2$ (this book's, by
    Duhamel's formula; it replaces the squared logarithm of Theorem F.2 in the form we reconstructed).

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        label_norm: $\|Y\|_F$, or $\|Y-F(0)\|_F$ of a network that does not start at zero.
        cross_norm: $\|K_0(x,X)\|$ for one output.
        kernel_drift: $\epsilon_H$.
        point_drift: $\epsilon_{test}$.

    Returns:
        The bound; the arguments are broadcast against each other.

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
    smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, width: int, kernel_drift: float, point_drift: float
) -> float:
    r"""Return Theorem F.2 as reconstructed, hidden constants 1.

    $\frac{\sqrt{nd}}\lambda\epsilon_{test} + \frac{\sqrt{nd}}{\lambda^2}\log^2\!\big(\frac{nd}{\epsilon_Hm\lambda}\big)
    \epsilon_H$.

    Args:
        smallest_eigenvalue: $\lambda$, positive.
        n_samples: $n$.
        n_outputs: $d$.
        width: $m$.
        kernel_drift: $\epsilon_H$, positive.
        point_drift: $\epsilon_{test}$.

    Returns:
        The bound, without the hidden constant.

    Example:
        >>> round(coupling_bound_of_theorem(
        ...     0.5, n_samples=16, n_outputs=1, width=64, kernel_drift=0.5, point_drift=0.1), 3)
        0.8
    """
    root = (n_samples * n_outputs) ** 0.5
    logarithm = float(np.log(n_samples * n_outputs / (kernel_drift * width * smallest_eigenvalue)))
    return root / smallest_eigenvalue * (point_drift + logarithm**2 * kernel_drift / smallest_eigenvalue)
