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
    displacements: Float[Tensor, "members variants inputs width"],
    inputs: Float[Tensor, "members samples inputs"],
) -> Float[Tensor, "members variants outputs samples"]:
    r"""Return the change of the outputs to first order in changes of the weights, $J(x)\,\mathrm{vec}(V)$.

    Features are computed once for all variants: many stopping times cost little more than one.

    Args:
        networks: The networks at the start.
        displacements: $V$, changes of each first layer, several for each network.
        inputs: Samples of each.

    Returns:
        The linear models' outputs; for paired networks, which start at zero, the whole prediction.

    Raises:
        ValueError: If the shapes do not fit.
    """
    members, n_inputs, width = networks.first_layer.shape
    if displacements.ndim != 4 or (*displacements.shape[:1], *displacements.shape[2:]) != (members, n_inputs, width):
        raise ValueError(
            f"displacements: expected (members, variants, inputs, width) = ({members}, any, {n_inputs}, {width}), "
            f"got {tuple(displacements.shape)}"
        )
    derivatives = neuron_derivatives(networks, inputs)

    def along(weighted: Tensor) -> Tensor:
        """Sum over neurons and inputs, ``(members, variants, samples)``."""
        summed = torch.bmm(derivatives, weighted.flatten(1, 2).mT).unflatten(2, (-1, n_inputs))
        return (summed * inputs[:, :, None]).sum(3).mT

    signs = networks.signs[:, :, None, None]
    change = torch.stack([along(displacements * signs[:, k]) for k in range(signs.shape[1])], dim=2)
    if networks.activation == "softmax":
        change -= along(displacements)[:, :, None] * predict(networks, inputs)[:, None] / width
    return change
