r"""Two-layer networks with softmax, exponential or ReLU neurons, their loss and its gradient in closed form.

All three networks of the paper's Table 1 are written in one scaling,
$F_\ell(x) = \sum_r a_{\ell r}\,\phi_r(x)$ with frozen signs $a_{\ell r}$ and

==============  =====================================================================================
``softmax``     $\phi_r = m\,\mathrm{softmax}(W^\top x)_r$: equation (1) of the paper
``exp``         $\phi_r = e^{\langle w_r, x\rangle}$: the same without the denominator
``relu``        $\phi_r = \max(\langle w_r, x\rangle, 0)$
==============  =====================================================================================

The derivative of output $\ell$ with respect to neuron $r$ is in all three $g_r(x)\,(a_{\ell r} - c_\ell(x))\,x$ with
$g = \phi$, $e^{\langle w,x\rangle}$ and $1[\langle w,x\rangle>0]$; the centring $c_\ell = F_\ell/m$ exists for softmax
only: the denominator ties every neuron to all others.

Tensors have a leading *member* axis: networks of one activation and one width are computed together. Networks of
different widths cannot share a tensor (padding would change the softmax); group them by width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.kernels import Activation, check_activation

__all__ = [
    "Inputs", "Labels", "Networks", "Start", "Weights", "check_finite", "check_shape", "draw_weights", "logits",
    "loss_and_gradient", "neuron_derivatives", "predict",
]  # fmt: skip

Inputs: TypeAlias = Float[Tensor, "members samples inputs"]
Labels: TypeAlias = Float[Tensor, "members outputs samples"]
Start: TypeAlias = Literal["paired", "opposite_signs", "independent"]


class Weights(NamedTuple):
    """The two layers of one network, before training.

    Attributes:
        first_layer: One column per neuron, trained, ``(inputs, width)``.
        signs: What joins neurons to outputs, 1 or -1, never trained, ``(outputs, width)``.
    """

    first_layer: Float[np.ndarray, "inputs width"]
    signs: Float[np.ndarray, "outputs width"]


def draw_weights(
    width: int, n_inputs: int, n_outputs: int, *, rng: np.random.Generator, scale: float = 1.0, start: Start = "paired"
) -> Weights:
    r"""Return weights of one network; a pair is two neighbouring neurons.

    ``paired`` is the symmetric initialisation of Definition 3.7: neurons come in pairs with equal weights
    $w \sim N(0, \sigma^2 I)$ and opposite random signs, so that the network is zero at every input. The other two are
    for comparison: ``opposite_signs`` has opposite signs and independent weights, ``independent`` has neither.

    Args:
        width: Number of neurons $m$; even, unless ``start`` is ``independent``.
        n_inputs: Number of inputs $d_{in}$.
        n_outputs: Number of outputs $d$.
        rng: Source of randomness.
        scale: Standard deviation $\sigma$ of each weight; default 1, the paper leaves it open.
        start: What neurons share; default the paper's pairs.

    Returns:
        The weights.

    Raises:
        ValueError: If a size or the scale is not positive, the width odd for pairs, or the start unknown.

    Example:
        >>> weights = draw_weights(6, 3, 1, rng=np.random.default_rng(0))
        >>> bool((weights.signs.sum(axis=1) == 0).all())
        True
    """
    check_positive(width=width, n_inputs=n_inputs, n_outputs=n_outputs, scale=scale)
    if start not in get_args(Start):
        raise ValueError(f"start: expected one of {', '.join(get_args(Start))}, got {start!r}")
    if start != "independent" and width % 2:
        raise ValueError(f"width: neurons in pairs need an even width, got {width}; take {width + 1}")
    weights = scale * rng.standard_normal((n_inputs, width))
    signs = rng.choice([-1.0, 1.0], (n_outputs, width))
    if start != "independent":
        signs[:, 1::2] = -signs[:, ::2]
    if start == "paired":
        weights[:, 1::2] = weights[:, ::2]
    return Weights(weights, signs)


@dataclass(frozen=True)
class Networks:
    """Networks of one activation and one width, side by side.

    Attributes:
        activation: What a neuron computes.
        first_layer: Trained weights, ``(members, inputs, width)``.
        signs: Frozen second layers, ``(members, outputs, width)``.
    """

    activation: Activation
    first_layer: Float[Tensor, "members inputs width"]
    signs: Float[Tensor, "members outputs width"]

    def __post_init__(self) -> None:
        check_activation(self.activation)
        check_finite("first_layer", self.first_layer)

    @classmethod
    def stack(
        cls,
        activation: Activation,
        weights: Sequence[Weights],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Return networks of one activation and of equal sizes side by side.

        Args:
            activation: What a neuron computes.
            weights: One per network.
            device: Where to compute; default the CPU.
            dtype: Type of the computation; default float64, in which late losses and small drifts can be seen.

        Returns:
            The networks.

        Raises:
            ValueError: If there are none, their shapes differ, a weight is not finite or the activation is unknown.
        """
        shapes = {tuple(layer.shape for layer in one) for one in weights}
        if len(shapes) != 1:
            raise ValueError(
                f"weights: expected networks of one shape, at least one; group by width; got {sorted(shapes)}"
            )
        both = zip(*weights, strict=True)
        return cls(activation, *(to_tensor(part, device=device, dtype=dtype) for part in both))

    @property
    def width(self) -> int:
        """Number of neurons of each network."""
        return self.first_layer.shape[2]

    def subset(self, members: np.ndarray) -> Self:
        """Return some of the networks, by their numbers."""
        return replace(self, first_layer=self.first_layer[members], signs=self.signs[members])


def predict(networks: Networks, inputs: Inputs) -> Labels:
    r"""Return $F_\ell(x) = \sum_r a_{\ell r}\phi_r(x)$ of each network for its inputs (equation (1) for softmax).

    Args:
        networks: The networks.
        inputs: Samples of each of them, ``(members, samples, inputs)``.

    Returns:
        Their outputs, ``(members, outputs, samples)``.

    Raises:
        ValueError: As :func:`logits`.
    """
    return _neurons_and_outputs(networks, inputs)[1]


def loss_and_gradient(
    networks: Networks,
    inputs: Inputs,
    labels: Labels,
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members inputs width"]]:
    r"""Return the loss of each network (Definition 3.2) and its gradient (Claim 3.4), in closed form.

    With $E = F - Y$ and the derivatives $g$ of the neurons (see above), the gradient of
    $\frac12\|F - Y\|_F^2$ is $X^\top[\,g\odot(E^\top A - c\,r1^\top)]$ with
    $r=\tfrac1m\mathrm{rowsum}(E\odot F)$ and $c = 1$ for
    softmax and 0 else: the sum over outputs is one matrix product, the denominator one number per sample.

    Args:
        networks: The networks.
        inputs: Samples of each of them, ``(members, samples, inputs)``.
        labels: What they are to fit, ``(members, outputs, samples)``.

    Returns:
        Losses and gradients.

    Raises:
        ValueError: If the shapes do not fit.
    """
    neurons, outputs = _neurons_and_outputs(networks, inputs)
    check_shape("labels", labels, outputs.shape)
    residual = outputs - labels
    # With one output an outer product, for which bmm takes two to seven times as long.
    back = residual.mT * networks.signs if labels.shape[1] == 1 else torch.bmm(residual.mT, networks.signs)
    if networks.activation == "softmax":
        back -= (residual * outputs).sum(1).div_(networks.width).unsqueeze(2)
    back *= neurons.sign_() if networks.activation == "relu" else neurons
    return residual.square().sum((1, 2)) / 2, torch.bmm(inputs.mT, back)


def neuron_derivatives(networks: Networks, inputs: Inputs) -> Float[Tensor, "members samples width"]:
    r"""Return the factor $g$ of each neuron's derivative for each sample (see above).

    Args:
        networks: The networks.
        inputs: Samples of each of them, ``(members, samples, inputs)``.

    Returns:
        The factors.

    Raises:
        ValueError: As :func:`logits`.
    """
    found = logits(networks, inputs)
    if networks.activation == "softmax":
        return torch.softmax(found, dim=2).mul_(networks.width)
    return found.exp_() if networks.activation == "exp" else (found > 0).to(found)


def _neurons_and_outputs(networks: Networks, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the neurons, ``(members, samples, width)``, and outputs; all but ReLU are their own derivative."""
    relu = networks.activation == "relu"
    neurons = logits(networks, inputs).relu_() if relu else neuron_derivatives(networks, inputs)
    return neurons, torch.bmm(networks.signs, neurons.mT)


def logits(networks: Networks, inputs: Inputs) -> Float[Tensor, "members samples width"]:
    r"""Return $\langle w_r, x\rangle$ of each neuron for each sample.

    Args:
        networks: The networks.
        inputs: Samples of each of them, ``(members, samples, inputs)``.

    Returns:
        The logits.

    Raises:
        ValueError: If the shapes do not fit or an input is not finite.
    """
    members, n_inputs, _ = networks.first_layer.shape
    check_shape("inputs", inputs, (members, *inputs.shape[1:2], n_inputs))
    check_finite("inputs", inputs)
    return torch.bmm(inputs, networks.first_layer)


def check_finite(name: str, given: Tensor) -> None:
    """Refuse a tensor with NaN or infinity."""
    # One pass over the numbers; a sum of finite numbers may be infinite as well.
    if not math.isfinite(given.sum()) and not torch.isfinite(given).all():
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")


def check_shape(name: str, given: Tensor, expected: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape."""
    if given.shape != expected:
        raise ValueError(f"{name}: expected shape {tuple(expected)}, to fit the others, got {tuple(given.shape)}")
