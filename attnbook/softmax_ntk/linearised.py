r"""The linear model that a network is while it hardly moves: its features at the start, any weights.

Kernel regression written over samples costs one kernel evaluation per sample; written over weights it costs as much
as the network itself. This is what makes sampling with a kernel machine cheap.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.models.two_layer import Networks, neuron_derivatives, predict

__all__ = ["predict_linearised", "weight_displacement"]


@torch.no_grad()
def weight_displacement(
    networks: Networks, inputs: Float[Tensor, "members samples inputs"], coefficients: Float[Tensor, "members rows"]
) -> Float[Tensor, "members inputs width"]:
    r"""Return the weights whose linear model is $\sum_jK(x,x_j)c_j$, with $K$ the neural tangent kernel.

    They are $\frac1mJ^\top c$: how far kernel gradient descent moves the first layer (times one, not the step size).

    Args:
        networks: The networks at the start.
        inputs: Samples $x_j$ of each.
        coefficients: $c$, output-major as the kernel's rows, ``(members, outputs * samples)``.

    Returns:
        One displacement per network.

    Raises:
        ValueError: If the shapes do not fit.
    """
    members, n_outputs, _ = networks.signs.shape
    if coefficients.shape != (members, n_outputs * inputs.shape[1]):
        raise ValueError(
            f"coefficients: expected (members, outputs * samples) = {(members, n_outputs * inputs.shape[1])}, "
            f"got {tuple(coefficients.shape)}"
        )
    each = coefficients.view(members, n_outputs, -1)
    back = torch.bmm(each.mT, networks.signs)
    if networks.activation == "softmax":
        back -= (each * predict(networks, inputs)).sum(1).div_(networks.width).unsqueeze(2)
    return torch.bmm(inputs.mT, back.mul_(neuron_derivatives(networks, inputs))).div_(networks.width)


@torch.no_grad()
def predict_linearised(
    networks: Networks,
    displacement: Float[Tensor, "members inputs width"],
    inputs: Float[Tensor, "members samples inputs"],
) -> Float[Tensor, "members outputs samples"]:
    r"""Return the change of the outputs to first order in a change of the weights, $J(x)\,\mathrm{vec}(V)$.

    Args:
        networks: The networks at the start.
        displacement: $V$, a change of each first layer.
        inputs: Samples of each.

    Returns:
        The linear models' outputs; for paired networks, which start at zero, the whole prediction.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if displacement.shape != networks.first_layer.shape:
        raise ValueError(
            f"displacement: expected the shape of the first layers {tuple(networks.first_layer.shape)}, "
            f"got {tuple(displacement.shape)}"
        )
    moved = torch.bmm(inputs, displacement).mul_(neuron_derivatives(networks, inputs))
    change = torch.bmm(networks.signs, moved.mT)
    if networks.activation == "softmax":
        change -= predict(networks, inputs) * moved.sum(2).div_(networks.width).unsqueeze(1)
    return change
