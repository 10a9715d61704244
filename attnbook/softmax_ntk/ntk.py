r"""The neural tangent kernel of the two-layer networks in closed form, and gradient descent on a kernel.

Rows and columns are output-major: ``kernel[l1 * n + i, l2 * n + j]`` is $H_{\ell_1\ell_2}(i, j)$.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.models.two_layer import Networks, neuron_derivatives, predict

__all__ = ["kernel_gradient_flow", "ntk_gram"]

# Neurons whose features are held at a time: bounds the memory at any width.
CHUNK = 4096


@torch.no_grad()
def ntk_gram(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    others: Float[Tensor, "members others inputs"] | None = None,
    *,
    chunk: int = CHUNK,
) -> Float[Tensor, "members rows columns"]:
    r"""Return the neural tangent kernel $H(W) = \frac1mJJ^\top$ of each network (Definition 3.6), without a Jacobian.

    The derivative of output $\ell$ at $x_i$ with respect to neuron $r$ is a number $G_{(\ell,i),r}$ times $x_i$. Hence
    $H = \frac1m(GG^\top)\odot(1_{d\times d}\otimes XX^\top)$: one matrix product of $nd\times m$ numbers in place of
    a Jacobian with $d_{in}$ times as many.

    Args:
        networks: The networks.
        inputs: Samples of each of them.
        others: Second arguments of the kernel; default the inputs themselves.
        chunk: Neurons whose features are held at a time, at least 1; default 4096.

    Returns:
        One matrix per network, ``(outputs * samples, outputs * others)``.

    Raises:
        ValueError: If the shapes do not fit, an input is not finite or ``chunk`` is not positive.

    Example:
        >>> from attnbook.softmax_ntk.models.two_layer import Weights
        >>> import numpy as np
        >>> network = Networks.stack("exp", [Weights(np.zeros((2, 4)), np.ones((1, 4)))])
        >>> ntk_gram(network, torch.tensor([[[1.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)).tolist()
        [[[1.0, 0.6], [0.6, 1.0]]]
    """
    if chunk < 1:
        raise ValueError(f"chunk: expected at least one neuron, got {chunk}")
    rows = _Features(networks, inputs)
    columns = rows if others is None else _Features(networks, others)
    second = inputs if others is None else others
    members, n_outputs, _ = networks.signs.shape
    gram = inputs.new_zeros(members, n_outputs * inputs.shape[1], n_outputs * second.shape[1])
    for start in range(0, networks.width, chunk):
        features = rows(start, start + chunk)
        gram.baddbmm_(features, (features if others is None else columns(start, start + chunk)).mT)
    products = torch.bmm(inputs, second.mT).div_(networks.width)
    blocks = gram.view(members, n_outputs, inputs.shape[1], n_outputs, second.shape[1])
    blocks.mul_(products[:, None, :, None, :])
    return gram


def kernel_gradient_flow(
    kernel: Float[Tensor, "*members rows rows"],
    labels: Float[Tensor, "*members rows"],
    scaled_step_size: Float[Tensor, "*members"] | float,
    steps: Sequence[int],
    *,
    cross: Float[Tensor, "*members points rows"] | None = None,
) -> Float[Tensor, "steps *members points"]:
    r"""Return the predictions of gradient descent on a kernel from zero, after any numbers of steps.

    With $H = Q\,\mathrm{diag}(\mu)\,Q^\top$ the residual of the linear model after $t$ steps is
    $(I-\eta mH)^t$ times the first one, so that one eigendecomposition serves every $t$:
    $f_t(x) = K(x, X)\,Q\,\mathrm{diag}\big((1-(1-\eta m\mu)^t)/\mu\big)\,Q^\top\mathrm{vec}(Y)$.

    Args:
        kernel: Symmetric positive semi-definite matrix $H$ of the training points.
        labels: $\mathrm{vec}(Y)$; a network that does not start at zero has $\mathrm{vec}(Y - F(0))$ here.
        scaled_step_size: $\eta m$, the width times the step size of the network; positive. Above $2/\lambda_{\max}$ it
            diverges.
        steps: Numbers of steps $t$, at least 0.
        cross: $K(x, X)$ of the points to predict at; default the training points.

    Returns:
        Predictions at the points, for each number of steps.

    Raises:
        ValueError: If the kernel or labels are not finite, or a number is outside its range.

    Example:
        >>> kernel, labels = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> kernel_gradient_flow(kernel, labels, 0.5, [1, 2]).tolist()
        [[0.5, -0.5], [0.75, -0.75]]
    """
    if not (torch.isfinite(kernel).all() and torch.isfinite(labels).all()):
        raise ValueError("kernel, labels: expected finite numbers, got NaN or infinity")
    eta = torch.as_tensor(scaled_step_size, dtype=kernel.dtype, device=kernel.device).unsqueeze(-1)
    if not (torch.isfinite(eta) & (eta > 0)).all():
        raise ValueError(f"scaled_step_size: expected positive numbers, got {scaled_step_size}")
    if not len(steps) or min(steps) < 0:
        raise ValueError(f"steps: expected at least one number of steps, none negative, got {list(steps)}")
    eigenvalues, vectors = torch.linalg.eigh(kernel)
    eigenvalues.clamp_(min=0.0)  # rounding makes zeros slightly negative
    coefficients = (vectors.mT @ labels.unsqueeze(-1)).squeeze(-1)
    points = (kernel if cross is None else cross) @ vectors
    learned = [_inverse_after(eigenvalues, eta, t) * coefficients for t in steps]
    return torch.stack([(points @ c.unsqueeze(-1)).squeeze(-1) for c in learned])


def _inverse_after(eigenvalues: Tensor, eta: Tensor, steps: int) -> Tensor:
    r"""$(1-(1-\eta\mu)^t)/\mu$; $\eta t$ where $\mu$ is zero, and without cancellation where it is small."""
    rates = eta * eigenvalues
    small = rates < 0.5
    left = torch.where(small, -torch.expm1(steps * torch.log1p(-rates.clamp(max=0.5))), 1 - (1 - rates) ** steps)
    return torch.where(eigenvalues > 0, left / eigenvalues.clamp(min=1e-300), eta * steps)


class _Features:
    """Scalar features of all samples for a range of neurons, ``(members, outputs * samples, neurons)``."""

    def __init__(self, networks: Networks, inputs: Tensor) -> None:
        outputs = predict(networks, inputs)
        self.derivatives, self.signs = neuron_derivatives(networks, inputs), networks.signs
        self.centre = outputs.div_(networks.width).unsqueeze(3) if networks.activation == "softmax" else None

    def __call__(self, start: int, stop: int) -> Tensor:
        centred = self.signs[:, :, None, start:stop]
        if self.centre is not None:
            centred = centred - self.centre
        return (centred * self.derivatives[:, None, :, start:stop]).flatten(1, 2)
