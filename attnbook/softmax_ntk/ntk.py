r"""The neural tangent kernel of the two-layer networks in closed form, and learning with a kernel: steps, flow, limit.

Rows and columns are output-major: ``kernel[l1 * n + i, l2 * n + j]`` is $H_{\ell_1\ell_2}(i, j)$.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Inputs, Networks, check_finite, check_shape, neuron_derivatives

__all__ = ["kernel_gradient_flow", "ntk_gram"]


@torch.no_grad()
def ntk_gram(
    networks: Networks,
    inputs: Inputs,
    others: Float[Tensor, "members others inputs"] | None = None,
) -> Float[Tensor, "members rows columns"]:
    r"""Return the neural tangent kernel $H(W) = \frac1mJJ^\top$ of each network (Definition 3.6), without a Jacobian.

    The derivative of output $\ell$ at $x_i$ with respect to neuron $r$ is a number $G_{(\ell,i),r}$ times $x_i$. Hence
    $H = \frac1m(GG^\top)\odot(1_{d\times d}\otimes XX^\top)$: one matrix product of $nd\times m$ numbers instead of
    a Jacobian with $d_{in}$ times as many.

    Args:
        networks: The networks.
        inputs: Samples of each of them, ``(members, samples, inputs)``.
        others: Second arguments of the kernel; default the inputs themselves.

    Returns:
        The kernels.

    Raises:
        ValueError: If the shapes do not fit or an input is not finite.

    Example:
        >>> from attnbook.softmax_ntk.two_layer import Weights
        >>> import numpy as np
        >>> network = Networks.stack("exp", [Weights(np.zeros((2, 4)), np.ones((1, 4)))])
        >>> ntk_gram(network, torch.tensor([[[1.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)).tolist()
        [[[1.0, 0.6], [0.6, 1.0]]]
    """
    rows = _features(networks, inputs)
    columns = rows if others is None else _features(networks, others)
    products = torch.bmm(inputs, (inputs if others is None else others).mT) / networks.width
    n_outputs = networks.signs.shape[1]
    return torch.bmm(rows, columns.mT).mul_(products.repeat(1, n_outputs, n_outputs))


def _features(networks: Networks, inputs: Tensor) -> Tensor:
    """The numbers $G$, ``(members, outputs * samples, width)``."""
    derivatives, votes = neuron_derivatives(networks, inputs), networks.signs.unsqueeze(2)
    if networks.activation == "softmax":
        votes = votes - torch.bmm(networks.signs, derivatives.mT).unsqueeze(3) / networks.width
    return (votes * derivatives.unsqueeze(1)).flatten(1, 2)


def kernel_gradient_flow(
    kernel: Float[Tensor, "*members rows rows"],
    labels: Float[Tensor, "*members rows"],
    scaled_step_size: Float[Tensor, "*members"] | float | None,
    steps: Sequence[int] | Sequence[float],
    *,
    cross: Float[Tensor, "*members points rows"] | None = None,
) -> Float[Tensor, "steps *members points"]:
    r"""Return the predictions of gradient descent or gradient flow on a kernel from zero, at any times.

    With $H = Q\,\mathrm{diag}(\mu)\,Q^\top$ the residual of the linear model after $t$ steps is
    $(I-\eta mH)^t$ times the first one, so that one eigendecomposition serves every $t$:
    $f_t(x) = K(x, X)\,Q\,\mathrm{diag}(\rho_t(\mu))\,Q^\top\mathrm{vec}(Y)$ with
    $\rho_t(\mu) = (1-(1-\eta m\mu)^t)/\mu$ for steps, and $\rho_t(\mu) = (1-e^{-\mu t})/\mu$ for the flow
    $\dot f = -K(f-Y)$. As $t$ grows both tend to kernel regression, $K(x, X)H^{-1}\mathrm{vec}(Y)$
    (Definition F.1).

    Args:
        kernel: Symmetric positive semi-definite matrix $H$ of the training points.
        labels: $\mathrm{vec}(Y)$; a network that does not start at zero has $\mathrm{vec}(Y - F(0))$ here.
        scaled_step_size: $\eta m$, the width times the step size of the network, positive and at most
            $2/\lambda_{\max}$; or ``None`` for the flow, whose time $t$ stands for $\eta m$ times a number of steps.
        steps: Numbers of steps or, for the flow, times $t$; at least 0.
        cross: $K(x, X)$ of the points to predict at; default the training points.

    Returns:
        Predictions, one row for each number of steps.

    Raises:
        ValueError: If shapes do not fit, the kernel or labels are not finite, the kernel is not symmetric or not
            positive semi-definite, a number is outside its range, or a step size diverges: above $2/\lambda_{\max}$
            the linear model leaves its fit in ever larger strides.

    Example:
        >>> kernel, labels = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> kernel_gradient_flow(kernel, labels, 0.5, [1, 2]).tolist()
        [[0.5, -0.5], [0.75, -0.75]]
        >>> [round(f, 4) for f in kernel_gradient_flow(kernel, labels, None, [0.5])[0].tolist()]
        [0.3935, -0.3935]
    """
    eigenvalues, vectors = _spectrum(kernel)
    points, shape, times = kernel if cross is None else cross, kernel.shape[:-1], kernel.new_tensor(steps)
    check_shape("labels", labels, shape)
    check_finite("labels", labels)
    if points.shape[:-2] + points.shape[-1:] != shape:
        raise ValueError(f"cross: expected rows of shape {tuple(shape)}, got {tuple(points.shape)}")
    whole = scaled_step_size is None or times == times.round()
    if times.ndim != 1 or not len(times) or not (torch.isfinite(times) & (times >= 0) & whole).all():
        raise ValueError(f"steps: expected numbers of at least 0, whole unless the step size is None, got {steps}")
    times = times.reshape(-1, *[1] * eigenvalues.ndim)
    if scaled_step_size is None:
        learned = -torch.expm1(-times * eigenvalues)
    else:
        eta = torch.as_tensor(scaled_step_size, dtype=kernel.dtype, device=kernel.device)
        longest = 2 / eigenvalues[..., -1]
        if eta.shape not in ((), shape[:-1]) or not ((eta > 0) & (eta <= longest * (1 + 1e-12))).all():
            raise ValueError(
                f"scaled_step_size: expected one positive number or shape {tuple(shape[:-1])}, at most 2 over the "
                f"largest eigenvalue, {longest.tolist()}, since longer steps diverge; or None, got {scaled_step_size}"
            )
        rates = eta.unsqueeze(-1) * eigenvalues
        small = -torch.expm1(times * torch.log1p(-rates.clamp(max=0.5)))  # without cancellation
        learned, times = torch.where(rates < 0.5, small, 1 - (1 - rates) ** times), eta.unsqueeze(-1) * times
    learned = torch.where(eigenvalues > 0, learned / eigenvalues.clamp(min=1e-300), times)
    coefficients = (vectors.mT @ labels.unsqueeze(-1)).squeeze(-1)
    return (points @ vectors @ (learned * coefficients).movedim(0, -1)).movedim(-1, 0)


def _spectrum(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, increasing and none of them negative, and eigenvectors; refuses what is no kernel."""
    if kernel.ndim < 2 or kernel.shape[-2] != kernel.shape[-1] or not kernel.numel():
        raise ValueError(f"kernel: expected a square matrix for each member, got shape {tuple(kernel.shape)}")
    check_finite("kernel", kernel)
    rounding = torch.finfo(kernel.dtype).eps ** 0.5
    uneven = (kernel - kernel.mT).abs().amax((-2, -1))
    if (uneven > rounding * kernel.abs().amax((-2, -1))).any():
        raise ValueError(f"kernel: expected a symmetric matrix, got one that differs by {uneven.max():.3g}")
    found, vectors = torch.linalg.eigh(kernel)
    if (found[..., 0] < -rounding * found[..., -1].abs()).any():
        raise ValueError(f"kernel: expected a positive semi-definite matrix, got the eigenvalue {found.min():.3g}")
    return found.clamp(min=0.0), vectors
