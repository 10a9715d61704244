r"""Networks to first order around their weights: kernel machines that are evaluated without a kernel.

With $J$ the derivative of all outputs with respect to the first layer, the linearised network is
$f(x) = F(x) + \langle\nabla F(x), \delta\rangle$ for a change $\delta$ of the weights. Kernel regression with
coefficients $c$ is the change $\delta = \frac1mJ^\top c$: a matrix of the size of the first layer, so that a prediction
costs as much as one of the network, however many training points there are.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Networks, neuron_derivatives, predict

__all__ = ["change_of_weights", "coupling_bound", "outputs_and_change"]


@torch.no_grad()
def change_of_weights(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    coefficients: Float[Tensor, "members outputs samples"],
) -> Float[Tensor, "members inputs width"]:
    r"""Return $\frac1mJ^\top c$: the change of the first layer that coefficients on samples stand for.

    Args:
        networks: The networks around whose weights $J$ is taken.
        inputs: Samples of each of them.
        coefficients: $c$, one number per output and sample; for kernel regression $H^{-1}\mathrm{vec}(Y)$.

    Raises:
        ValueError: If the shapes do not fit.
    """
    expected = (*networks.signs.shape[:2], inputs.shape[1])
    if coefficients.shape != expected:
        got = tuple(coefficients.shape)
        raise ValueError(f"coefficients: expected (members, outputs, samples) = {expected}, got {got}")
    back = torch.bmm(coefficients.mT, networks.signs)
    if networks.activation == "softmax":
        back -= (coefficients * predict(networks, inputs)).sum(1).div_(networks.width).unsqueeze(2)
    back *= neuron_derivatives(networks, inputs)
    return torch.bmm(inputs.mT, back).div_(networks.width)


@torch.no_grad()
def outputs_and_change(
    networks: Networks, inputs: Float[Tensor, "members points inputs"], change: Float[Tensor, "members inputs width"]
) -> tuple[Float[Tensor, "members outputs points"], Float[Tensor, "members outputs points"]]:
    r"""Return the outputs $F(x)$, and $J\delta$: how a change of the first layer moves them, to first order.

    Args:
        networks: The networks around whose weights $J$ is taken.
        inputs: Points of each of them.
        change: The change $\delta$ of each first layer.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if change.shape != networks.first_layer.shape:
        expected = tuple(networks.first_layer.shape)
        raise ValueError(f"change: expected the shape of the first layers {expected}, got {tuple(change.shape)}")
    outputs = predict(networks, inputs)
    moved = torch.bmm(inputs, change).mul_(neuron_derivatives(networks, inputs))
    found = torch.bmm(networks.signs, moved.mT)
    if networks.activation == "softmax":
        found -= outputs * moved.sum(2).div_(networks.width).unsqueeze(1)
    return outputs, found


def coupling_bound(smallest: Tensor, label_norm: Tensor, drift: Tensor, cross_norm: Tensor, moved: Tensor) -> Tensor:
    r"""Return $2\epsilon_{test}\|Y\|_F/\lambda + 4\|K_0(x,X)\|\,\epsilon_H\|Y\|_F/\lambda^2$.

    It bounds how far a network and its kernel machine can be apart at an input $x$, at every time of gradient flow, if
    $\epsilon_H\le\lambda/2$ (this book's, by Duhamel's formula; it has no logarithm, unlike Theorem F.2 in the form
    that we reconstructed). Arguments are broadcast against each other.

    Args:
        smallest: $\lambda$, the smallest eigenvalue of the kernel at the start, positive.
        label_norm: $\|Y\|_F$, the norm of what is left to learn.
        drift: $\epsilon_H$, by how much the kernel of the training points moves, in Frobenius norm.
        cross_norm: $\|K_0(x,X)\|$, the norm of the kernel between $x$ and the training points, at the start.
        moved: $\epsilon_{test}$, by how much this part of the kernel moves.
    """
    return label_norm * (2 * moved / smallest + 4 * cross_norm * drift / smallest**2)
