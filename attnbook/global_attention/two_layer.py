r"""The network of equation (1) with any activation and loss: values, gradients and the product of its Hessian.

$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$. Everything is in closed form; automatic differentiation is the oracle of the
tests. Losses are the paper's: the mean over samples of half the squared error, summed over outputs (objective (2)), or
of the cross-entropy of a softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from attnbook.core.ensemble import Parameters

__all__ = ["Activation", "Hessian", "Loss", "ReLU", "Softplus", "loss_and_gradient", "predict"]

Loss: TypeAlias = Literal["squared", "cross_entropy"]


class ReLU:
    """The positive part; slope 0 at 0, and no second derivative anywhere (its kink is left out)."""

    def value(self, u: Tensor) -> Tensor:
        """Return the positive part."""
        return u.relu()

    def slope(self, u: Tensor) -> Tensor:
        """Return 1 where the unit is on, else 0."""
        return (u > 0).to(u.dtype)

    def bend(self, u: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(u)


@dataclass(frozen=True)
class Softplus:
    r"""The smooth ReLU $\phi_\tau(u)=\tau^{-1}\log(1+e^{\tau u})$ of the paper's theory.

    It lies at most $\log 2/\tau$ above ReLU.

    Attributes:
        sharpness: $\tau$, positive; default 10.
    """

    sharpness: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.sharpness < float("inf"):
            raise ValueError(f"sharpness: expected a positive number, got {self.sharpness}")

    def value(self, u: Tensor) -> Tensor:
        """Return the smooth positive part."""
        # torch's softplus switches to the identity above its threshold; 40 keeps float64 exact.
        return functional.softplus(u, beta=self.sharpness, threshold=40.0)

    def slope(self, u: Tensor) -> Tensor:
        """Return a logistic curve."""
        return torch.sigmoid(self.sharpness * u)

    def bend(self, u: Tensor) -> Tensor:
        """Return the derivative of that curve."""
        slope = self.slope(u)
        return self.sharpness * slope * (1 - slope)


Activation: TypeAlias = ReLU | Softplus
"""A nonlinearity with its value, slope and bend (second derivative)."""


def predict(
    parameters: Parameters, inputs: Float[Tensor, "groups samples inputs"], activation: Activation
) -> Float[Tensor, "members outputs samples"]:
    """Return the outputs of each member (the logits, for classes).

    Args:
        parameters: ``mask (members, inputs)``, ``hidden (members, width, inputs)``, ``decoder (members, outputs,
            width)``.
        inputs: Samples; equally many neighbouring members share each group.
        activation: The nonlinearity.

    Returns:
        Outputs.
    """
    return parameters["decoder"] @ activation.value(_before(parameters, inputs))


def loss_and_gradient(
    parameters: Parameters,
    batch: tuple[Float[Tensor, "groups samples inputs"], Float[Tensor, "groups outputs samples"]],
    *,
    activation: Activation,
    loss: Loss,
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the loss of each member and its gradient.

    With $u_i$ the derivative of sample $i$'s loss in its outputs: $\nabla w^{(2)}=\frac1n\sum_iu_ih_i^\top$,
    $G=\frac1n\sum_i(w^{(2)\top}u_i\odot h_i')x_i^\top$, $\nabla w^{(1)}=G\,\mathrm{diag}(a)$ and
    $\nabla a=\sum_jG_{j\cdot}\odot w^{(1)}_{j\cdot}$. (In the text available to us the last one shows $w^{(1)}$
    transposed.)

    Args:
        parameters: As for :func:`predict`.
        batch: Inputs, and labels: numbers for ``squared``, one-hot for ``cross_entropy``.
        activation: The nonlinearity.
        loss: ``squared`` (objective (2)) or ``cross_entropy``.

    Returns:
        Losses and gradients of ``mask``, ``hidden`` and ``decoder``.

    Raises:
        ValueError: If the loss is unknown.
    """
    inputs, labels = batch
    mask, hidden, decoder = parameters["mask"].unsqueeze(1), parameters["hidden"], parameters["decoder"]
    before = _before(parameters, inputs)
    value = activation.value(before)
    wanted = labels.repeat_interleave(len(hidden) // len(labels), dim=0)
    losses, residual = _outer(decoder @ value, wanted, loss)
    backward = (decoder.mT @ residual).mul_(activation.slope(before))
    folded = torch.bmm(backward.view(len(inputs), -1, inputs.shape[1]), inputs).view_as(hidden)
    gradients = {"mask": (folded * hidden).sum(1), "hidden": folded * mask, "decoder": residual @ value.mT}
    return losses, gradients


def _before(parameters: Parameters, inputs: Tensor) -> Tensor:
    """What enters the hidden units; members of a group stand side by side in one product."""
    folded = parameters["hidden"] * parameters["mask"].unsqueeze(1)
    side_by_side = folded.view(len(inputs), -1, inputs.shape[2])
    return torch.bmm(side_by_side, inputs.mT).view(*folded.shape[:2], inputs.shape[1])


def _outer(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Mean loss over samples, and its derivative in the outputs."""
    samples = outputs.shape[-1]
    if loss == "squared":
        residual = outputs - labels
        return residual.square().sum(-2).mean(-1) / 2, residual / samples
    if loss == "cross_entropy":
        log_shares = outputs.log_softmax(-2)
        return -(labels * log_shares).sum(-2).mean(-1), (log_shares.exp() - labels) / samples
    raise ValueError(f"loss: expected one of {', '.join(get_args(Loss))}, got {loss!r}")


class Hessian:
    r"""The Hessian of the training loss of one network, as a product with many vectors at once.

    A direction moves the folded first layer $M=w^{(1)}\mathrm{diag}(a)$ by
    $\dot M=\dot w^{(1)}\mathrm{diag}(a)+w^{(1)}\mathrm{diag}(\dot a)$; all behind it is two matrix products with the
    inputs. The *raw* Hessian takes all parameters, in the order mask, first layer, second layer; the *folded* one
    takes $(M,w^{(2)})$, and does not change when scale moves between mask and first layer.

    Args:
        mask: Mask ``(inputs,)``; None for the folded Hessian (or for a network without a mask).
        hidden: First layer ``(width, inputs)``; the folded one if there is no mask.
        decoder: Second layer ``(outputs, width)``.
        inputs: Samples ``(samples, inputs)``.
        labels: Labels ``(outputs, samples)``, one-hot for ``cross_entropy``.
        activation: The nonlinearity.
        loss: ``squared`` or ``cross_entropy``.

    Raises:
        ValueError: If the loss is unknown.

    Attributes:
        size: Length of the vectors.
        loss: The training loss there.
        gradient: Its gradient, ``(size,)``.
    """

    def __init__(
        self,
        mask: Float[Tensor, " inputs"] | None,
        hidden: Float[Tensor, "width inputs"],
        decoder: Float[Tensor, "outputs width"],
        inputs: Float[Tensor, "samples inputs"],
        labels: Float[Tensor, "outputs samples"],
        *,
        activation: Activation,
        loss: Loss,
    ) -> None:
        self.mask, self.hidden, self.decoder, self.inputs = mask, hidden, decoder, inputs
        folded = hidden if mask is None else hidden * mask
        before = folded @ inputs.T
        self.value, self.slope = activation.value(before), activation.slope(before)
        outputs = decoder @ self.value
        value, self.residual = _outer(outputs, labels, loss)
        self.loss = float(value)
        self.shares = outputs.softmax(0) if loss == "cross_entropy" else None
        back = decoder.T @ self.residual
        self.bend = back * activation.bend(before)
        self.folded_gradient = (back * self.slope) @ inputs
        self.size = hidden.numel() + decoder.numel() + (0 if mask is None else mask.numel())
        last = (self.residual @ self.value.T).flatten()
        self.gradient = torch.cat([*self._unfold(self.folded_gradient.unsqueeze(0)), last.unsqueeze(0)], 1)[0]

    @torch.no_grad()
    def __call__(self, vectors: Float[Tensor, "vectors size"]) -> Float[Tensor, "vectors size"]:
        """Return the Hessian times each row."""
        count, (width, n_inputs), outputs = len(vectors), self.hidden.shape, len(self.decoder)
        split = [vectors.shape[1] - outputs * width, outputs * width]
        first, last = vectors.split(split, dim=1)
        move_last = last.view(count, outputs, width)
        move_folded, move_mask, move_hidden = self._fold(first)
        move_before = (move_folded.reshape(-1, n_inputs) @ self.inputs.T).view(count, width, -1)
        move_value = move_before * self.slope
        move_outputs = self.decoder @ move_value + (move_last.reshape(-1, width) @ self.value).view(count, outputs, -1)
        move_residual = self._curve(move_outputs)
        back = self.decoder.T @ move_residual + move_last.mT @ self.residual
        back = back.mul_(self.slope).addcmul_(move_before, self.bend)
        result_folded = (back.view(count * width, -1) @ self.inputs).view(count, width, n_inputs)
        result_last = move_residual @ self.value.T + self.residual @ move_value.mT
        parts = self._unfold(result_folded)
        if move_mask is not None and move_hidden is not None:
            parts[0] = parts[0] + (self.folded_gradient * move_hidden).sum(1)
            parts[1] = parts[1] + (self.folded_gradient * move_mask.unsqueeze(1)).flatten(1)
        return torch.cat([*parts, result_last.flatten(1)], 1)

    def dense(self) -> Float[Tensor, "size size"]:
        """Return the Hessian written out; for small networks."""
        return self(torch.eye(self.size, dtype=self.hidden.dtype, device=self.hidden.device))

    def _curve(self, move_outputs: Tensor) -> Tensor:
        """How the residual moves with the outputs: the Hessian of the outer loss."""
        samples = self.inputs.shape[0]
        if self.shares is None:
            return move_outputs / samples
        weighted = self.shares * move_outputs
        return (weighted - self.shares * weighted.sum(1, keepdim=True)).div_(samples)

    def _fold(self, first: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The direction in the folded layer; and in mask and first layer, where there is a mask."""
        if self.mask is None:
            return first.reshape(len(first), *self.hidden.shape), None, None
        move_mask, rest = first.split([self.mask.numel(), self.hidden.numel()], dim=1)
        move_hidden = rest.reshape(len(first), *self.hidden.shape)
        return move_hidden * self.mask + self.hidden * move_mask.unsqueeze(1), move_mask, move_hidden

    def _unfold(self, folded: Tensor) -> list[Tensor]:
        """From derivatives in the folded layer to those in mask and first layer."""
        if self.mask is None:
            return [folded.flatten(1)]
        return [(folded * self.hidden).sum(1), (folded * self.mask).flatten(1)]
