r"""The network of equation (1) with any activation and loss: its outputs and the product of its Hessian.

$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$. Losses are the paper's: the mean over samples of half the squared error, summed
over outputs (objective (2)), or of the cross-entropy of a softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from attnbook.core.ensemble import Parameters
from attnbook.core.settings import check_positive

__all__ = ["Activation", "Hessian", "Loss", "Softplus", "mean_loss", "predict"]

Loss: TypeAlias = Literal["squared", "cross_entropy"]
Activation: TypeAlias = Callable[[Tensor], Tensor]
"""A nonlinearity that acts on each entry, ``torch.relu`` (its kink has no derivative) or :class:`Softplus`."""


@dataclass(frozen=True)
class Softplus:
    r"""The smooth ReLU $\phi_\tau(u)=\tau^{-1}\log(1+e^{\tau u})$ of the paper's theory.

    It lies at most $\log 2/\tau$ above ReLU.
    """

    sharpness: float = 10.0  #: $\tau$, positive; default 10

    def __post_init__(self) -> None:
        check_positive(sharpness=self.sharpness)

    def __call__(self, u: Tensor) -> Tensor:
        """Return the smooth positive part."""
        # torch's softplus switches to the identity above its threshold; 40 keeps float64 exact.
        return functional.softplus(u, beta=self.sharpness, threshold=40.0)


def predict(
    parameters: Parameters, inputs: Float[Tensor, "groups samples inputs"], activation: Activation
) -> Float[Tensor, "members outputs samples"]:
    """Return the outputs of each member (the logits, for classes).

    Args:
        parameters: ``mask (members, inputs)``, ``hidden (members, width, inputs)``, ``decoder (members, outputs,
            width)``.
        inputs: Samples; equally many neighbouring members share each group.
        activation: The nonlinearity.
    """
    folded = parameters["hidden"] * parameters["mask"].unsqueeze(1)
    # Members of a group stand side by side in one product.
    before = torch.bmm(folded.view(len(inputs), -1, inputs.shape[2]), inputs.mT)
    return parameters["decoder"] @ activation(before.view(*folded.shape[:2], inputs.shape[1]))


def mean_loss(
    outputs: Float[Tensor, "*members outputs samples"], labels: Float[Tensor, "*members outputs samples"], loss: Loss
) -> Float[Tensor, "*members"]:
    """Return the mean over samples of ``squared``, objective (2), or of ``cross_entropy`` with one-hot labels."""
    if loss == "squared":
        return (outputs - labels).square().sum(-2).mean(-1) / 2
    if loss == "cross_entropy":
        return -(labels * outputs.log_softmax(-2)).sum(-2).mean(-1)
    raise ValueError(f"loss: expected one of {', '.join(get_args(Loss))}, got {loss!r}")


class Hessian:
    r"""The Hessian of the training loss of one network, as a product with many vectors at once.

    The *raw* Hessian takes all parameters, in the order mask, first layer, second layer; the *folded* one takes
    $M=w^{(1)}\mathrm{diag}(a)$ and $w^{(2)}$, and does not change when scale moves between mask and first layer. The
    gradient is differentiated once and kept; a product then costs about as much as another gradient.

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

    @torch.enable_grad()
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
        weights = [hidden, decoder] if mask is None else [mask, hidden, decoder]
        self._point = torch.cat([part.detach().flatten() for part in weights]).requires_grad_()
        parts = self._point.split([part.numel() for part in weights])
        *first, hidden, decoder = (part.view_as(like) for part, like in zip(parts, weights, strict=True))
        folded = hidden * first[0] if first else hidden
        value = mean_loss(decoder @ activation(folded @ inputs.T), labels, loss)
        (self._gradient,) = torch.autograd.grad(value, self._point, create_graph=True)
        self.size, self.loss, self.gradient = len(self._point), value.item(), self._gradient.detach()

    def __call__(self, vectors: Float[Tensor, "vectors size"]) -> Float[Tensor, "vectors size"]:
        """Return the Hessian times each row."""
        return torch.autograd.grad(self._gradient, self._point, vectors, retain_graph=True, is_grads_batched=True)[0]

    def dense(self) -> Float[Tensor, "size size"]:
        """Return the Hessian written out; for small networks."""
        return self(torch.eye(self.size, dtype=self.gradient.dtype, device=self.gradient.device))
