r"""Two-layer networks with softmax, exponential or ReLU neurons, and gradient descent on their first layer.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.softmax_ntk.theory.lazy_training import Activation, check_activation, check_positive

__all__ = [
    "Descent",
    "Networks",
    "Start",
    "Weights",
    "draw_weights",
    "gradient_descent",
    "loss_and_gradient",
    "predict",
]

Start: TypeAlias = Literal["paired", "opposite_signs", "independent"]

# A loss that has grown by this factor will not come back.
DIVERGED = 1e12


@dataclass(frozen=True)
class Weights:
    """The two layers of one network, before training.

    Attributes:
        first_layer: One column per neuron, trained, ``(inputs, width)``.
        signs: What joins neurons to outputs, 1 or -1, never trained, ``(outputs, width)``.
    """

    first_layer: Float[np.ndarray, "inputs width"]
    signs: Float[np.ndarray, "outputs width"]


def draw_weights(
    width: int,
    n_inputs: int,
    n_outputs: int,
    *,
    rng: np.random.Generator,
    scale: float = 1.0,
    start: Start = "paired",
) -> Weights:
    r"""Draw the weights of one network.

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
        The weights; a pair is two neighbouring neurons.

    Raises:
        ValueError: If a size is not positive, the width is odd where pairs are asked for, the scale is not a positive
            number or the start is unknown.

    Example:
        >>> weights = draw_weights(6, 3, 1, rng=np.random.default_rng(0))
        >>> bool((weights.signs.sum(axis=1) == 0).all())
        True
    """
    for name, size in {"width": width, "n_inputs": n_inputs, "n_outputs": n_outputs}.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    check_positive(scale=scale)
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
        for name in ("first_layer", "signs"):
            if not torch.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")

    @classmethod
    def stack(
        cls,
        activation: Activation,
        weights: Sequence[Weights],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Put networks of equal sizes side by side.

        Args:
            activation: What a neuron computes, the same in all of them.
            weights: One per network.
            device: Where to compute; default the CPU.
            dtype: Type of the computation; default float64, in which late losses and small drifts can be seen.

        Returns:
            The networks.

        Raises:
            ValueError: If there are none, their shapes differ, a weight is not finite or the activation is unknown.
        """
        shapes = sorted({(w.first_layer.shape, w.signs.shape) for w in weights})
        if len(shapes) != 1:
            raise ValueError(f"weights: expected networks of one shape, at least one; group by width; got {shapes}")
        first, signs = (np.stack([getattr(w, name) for w in weights]) for name in ("first_layer", "signs"))
        to = {"device": device, "dtype": dtype}
        return cls(activation, to_tensor(first, **to), to_tensor(signs, **to))  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        """Number of neurons of each network."""
        return self.first_layer.shape[2]

    def subset(self, members: Int[np.ndarray, " chosen"]) -> Self:
        """Return some of the networks, by their numbers."""
        return replace(self, first_layer=self.first_layer[members], signs=self.signs[members])


def predict(
    networks: Networks, inputs: Float[Tensor, "members samples inputs"]
) -> Float[Tensor, "members outputs samples"]:
    r"""Return $F_\ell(x) = \sum_r a_{\ell r}\phi_r(x)$ of each network for its own inputs (equation (1) for softmax).

    Args:
        networks: The networks.
        inputs: Samples of each of them.

    Returns:
        Outputs.

    Raises:
        ValueError: If the shapes do not fit.
    """
    _check_inputs(networks, inputs)
    return _outputs(networks, _neurons(networks, inputs))


def loss_and_gradient(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members inputs width"]]:
    r"""Return the loss of each network (Definition 3.2) and its gradient (Claim 3.4), in closed form.

    With $E = F - Y$ and the derivatives $g$ of the neurons (see above), the gradient of
    $\frac12\|F - Y\|_F^2$ is $X^\top[\,g\odot(E^\top A - c\,\tfrac1m\mathrm{rowsum}(E\odot F)1^\top)]$ with $c = 1$ for
    softmax and 0 else: the sum over outputs is one matrix product, the denominator one number per sample.

    Args:
        networks: The networks.
        inputs: Samples of each of them.
        labels: Their labels.

    Returns:
        Losses, and gradients with respect to the first layers.

    Raises:
        ValueError: If the shapes do not fit.
    """
    _check_inputs(networks, inputs)
    expected = (*networks.signs.shape[:2], inputs.shape[1])
    if labels.shape != expected:
        raise ValueError(f"labels: expected (members, outputs, samples) = {expected}, got {tuple(labels.shape)}")
    return _loss_and_gradient(networks, inputs, labels)


@dataclass(frozen=True)
class Descent:
    """What gradient descent did to each network.

    Attributes:
        loss: Loss at every step from 0 on, ``(steps + 1, members)``; a network that has stopped keeps its last one.
        steps: Steps that each network took, ``(members,)``.
        reached: Whether it reached the target.
        diverged: Whether its loss became infinite, NaN or astronomically large.
        longest_step: Longest single step of a single neuron, its change in Euclidean norm, ``(members,)``.
        networks: The networks where they stopped; those that diverged are back at their start.
    """

    loss: Float[np.ndarray, "records members"]
    steps: Int[np.ndarray, " members"]
    reached: Bool[np.ndarray, " members"]
    diverged: Bool[np.ndarray, " members"]
    longest_step: Float[np.ndarray, " members"]
    networks: Networks


@torch.no_grad()
def gradient_descent(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
    step_size: Float[Tensor, " members"],
    *,
    max_steps: int,
    target: float = 0.0,
) -> Descent:
    r"""Train first layers by gradient descent on the whole sample (Definition 3.5), one step size per network.

    A network stops when its loss has fallen to ``target`` times its first value, or diverges; divergence is a result
    here and no error. Networks that have stopped cost nothing from then on.

    Args:
        networks: Where to start; they are not changed.
        inputs: Samples of each network.
        labels: Their labels.
        step_size: Step size $\eta$ of each network, positive. A useful one is $1/(m\lambda_{\max}(H^*))$.
        max_steps: Steps after which to give up, at least 1.
        target: Fraction of the first loss to stop at; default 0, never.

    Returns:
        Losses at every step, and the trained networks.

    Raises:
        ValueError: If the shapes do not fit, a label is not finite, a step size is not positive or a number is
            outside its range.
    """
    _check_inputs(networks, inputs)
    _check_descent(networks, labels, step_size, max_steps, target)
    final = networks.first_layer.clone()
    active = torch.arange(len(final), device=final.device)
    longest = torch.zeros(len(final), dtype=final.dtype, device=final.device)
    steps = np.full(len(final), max_steps)
    reached, diverged = np.zeros((2, len(final)), dtype=bool)
    now, x, y, eta = replace(networks, first_layer=final.clone()), inputs, labels, step_size[:, None, None]
    history: list[np.ndarray] = []
    for step in range(max_steps + 1):
        losses, gradient = _loss_and_gradient(now, x, y)
        who = active.cpu().numpy()
        row = history[-1].copy() if history else np.zeros(len(final))
        row[who] = losses.cpu().numpy()
        history.append(row)
        reached[who] = row[who] <= target * history[0][who]
        diverged[who] = ~(row[who] <= DIVERGED * np.maximum(history[0][who], 1e-30))
        stop = reached[who] | diverged[who] | (step == max_steps)
        if stop.any():
            final[active] = now.first_layer
            steps[who[stop]] = step
            keep = torch.as_tensor(~stop, device=final.device)
            if not keep.any():
                break
            active, x, y, eta, gradient = (t[keep] for t in (active, x, y, eta, gradient))
            now = replace(now, first_layer=now.first_layer[keep], signs=now.signs[keep])
        gradient *= eta
        now.first_layer.sub_(gradient)
        longest[active] = torch.maximum(longest[active], gradient.norm(dim=1).amax(1))
    kept = torch.as_tensor(~diverged, device=final.device)[:, None, None]
    trained = replace(networks, first_layer=torch.where(kept, final, networks.first_layer))
    return Descent(np.stack(history), steps, reached, diverged, longest.cpu().double().numpy(), trained)


def neuron_derivatives(networks: Networks, inputs: Tensor) -> Tensor:
    """Return the factor $g$ of each neuron's derivative for each sample, ``(members, samples, width)``."""
    logits = torch.bmm(inputs, networks.first_layer)
    if networks.activation == "softmax":
        return torch.softmax(logits, dim=2).mul_(networks.width)
    return logits.exp_() if networks.activation == "exp" else (logits > 0).to(logits)


def _neurons(networks: Networks, inputs: Tensor) -> Tensor:
    """Values of the neurons, ``(members, samples, width)``; all but ReLU are their own derivative."""
    if networks.activation == "relu":
        return torch.bmm(inputs, networks.first_layer).relu_()
    return neuron_derivatives(networks, inputs)


def _outputs(networks: Networks, neurons: Tensor) -> Tensor:
    return torch.bmm(networks.signs, neurons.mT)


def _loss_and_gradient(networks: Networks, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    neurons = _neurons(networks, inputs)
    outputs = _outputs(networks, neurons)
    residual = outputs - labels
    back = torch.bmm(residual.mT, networks.signs)
    if networks.activation == "softmax":
        back -= (residual * outputs).sum(1).div_(networks.width).unsqueeze(2)
    back *= neurons.sign_() if networks.activation == "relu" else neurons
    return residual.square().sum((1, 2)) / 2, torch.bmm(inputs.mT, back)


def _check_inputs(networks: Networks, inputs: Tensor) -> None:
    members, n_inputs, _ = networks.first_layer.shape
    if inputs.ndim != 3 or inputs.shape[0] != members or inputs.shape[2] != n_inputs:
        raise ValueError(
            f"inputs: expected (members, samples, inputs) = ({members}, any, {n_inputs}), got {tuple(inputs.shape)}"
        )
    if not torch.isfinite(inputs).all():
        raise ValueError("inputs: expected finite numbers, got NaN or infinity")


def _check_descent(networks: Networks, labels: Tensor, step_size: Tensor, max_steps: int, target: float) -> None:
    members = len(networks.first_layer)
    if labels.ndim != 3 or labels.shape[:2] != networks.signs.shape[:2]:
        raise ValueError(
            f"labels: expected (members, outputs, samples) = ({members}, {networks.signs.shape[1]}, any), "
            f"got {tuple(labels.shape)}"
        )
    if not torch.isfinite(labels).all():
        raise ValueError("labels: expected finite numbers, got NaN or infinity")
    if step_size.shape != (members,) or not (torch.isfinite(step_size) & (step_size > 0)).all():
        raise ValueError(f"step_size: expected one positive number per network ({members},), got {step_size}")
    if max_steps < 1:
        raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
    if not 0 <= target < 1:
        raise ValueError(f"target: expected a fraction of the first loss, at least 0 and below 1, got {target}")
