r"""The neural tangent kernel of the two-layer networks in closed form, and learning with a kernel: steps, flow, limit.

Rows and columns are output-major: ``kernel[l1 * n + i, l2 * n + j]`` is $H_{\ell_1\ell_2}(i, j)$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.conditioning import SingularKernelError, rank, refuse_negative
from attnbook.softmax_ntk.two_layer import Networks, logits, neuron_derivatives

__all__ = ["kernel_coefficients", "kernel_gradient_flow", "ntk_gram"]

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

    Raises:
        ValueError: If the shapes do not fit, an input is not finite or ``chunk`` is not positive.

    Example:
        >>> from attnbook.softmax_ntk.two_layer import Weights
        >>> import numpy as np
        >>> network = Networks.stack("exp", [Weights(np.zeros((2, 4)), np.ones((1, 4)))])
        >>> ntk_gram(network, torch.tensor([[[1.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)).tolist()
        [[[1.0, 0.6], [0.6, 1.0]]]
    """
    if chunk < 1:
        raise ValueError(f"chunk: expected at least one neuron, got {chunk}")
    rows = _Features(networks, inputs, chunk)
    columns = rows if others is None else _Features(networks, others, chunk)
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
    (Definition F.1), whose weights are :func:`kernel_coefficients`.

    Args:
        kernel: Symmetric positive semi-definite matrix $H$ of the training points.
        labels: $\mathrm{vec}(Y)$; a network that does not start at zero has $\mathrm{vec}(Y - F(0))$ here.
        scaled_step_size: $\eta m$, the width times the step size of the network, positive and at most
            $2/\lambda_{\max}$; or ``None`` for the flow, whose time $t$ stands for $\eta m$ times a number of steps.
        steps: Numbers of steps or, for the flow, times $t$; at least 0.
        cross: $K(x, X)$ of the points to predict at; default the training points.

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
    _check_learning(kernel, labels)
    if cross is not None and (cross.shape[:-2], cross.shape[-1:]) != (kernel.shape[:-2], kernel.shape[-1:]):
        shape = ", ".join(map(str, (*kernel.shape[:-2], "points", kernel.shape[-1])))
        raise ValueError(f"cross: expected shape ({shape}) to fit the kernel, got {tuple(cross.shape)}")
    times = torch.as_tensor(steps, dtype=kernel.dtype, device=kernel.device)
    if times.ndim != 1 or not len(times) or not (torch.isfinite(times) & (times >= 0)).all():
        raise ValueError(f"steps: expected at least one number of steps, none negative, got {steps}")
    if scaled_step_size is not None and not torch.equal(times, times.round()):
        raise ValueError(f"steps: expected whole numbers, got {list(steps)}; only the flow, step size None, has others")
    eigenvalues, vectors = torch.linalg.eigh(kernel)
    refuse_negative(eigenvalues)
    eigenvalues.clamp_(min=0.0)  # rounding makes zeros slightly negative
    times = times.reshape(-1, *[1] * eigenvalues.ndim)
    if scaled_step_size is None:
        learned = _learned(times * eigenvalues, eigenvalues, times)
    else:
        eta = _checked_step_size(scaled_step_size, eigenvalues)
        learned = _learned_in_steps(eigenvalues, eta, times)
    coefficients = (vectors.mT @ labels.unsqueeze(-1)).squeeze(-1)
    points = (kernel if cross is None else cross) @ vectors
    return (points @ (learned * coefficients).movedim(0, -1)).movedim(-1, 0)


def kernel_coefficients(
    kernel: Float[Tensor, "*members rows rows"], labels: Float[Tensor, "*members rows"], *, n_inputs: int | None = None
) -> Float[Tensor, "*members rows"]:
    r"""Return $H^{-1}\mathrm{vec}(Y)$, by Cholesky's factorisation: the weights of kernel regression.

    Args:
        kernel: Symmetric positive definite matrix $H$ of the training points.
        labels: $\mathrm{vec}(Y)$.
        n_inputs: Number of inputs of the networks, to name the smallest width that works in the error; default none.

    Raises:
        ValueError: As :func:`kernel_gradient_flow`.
        SingularKernelError: If one is singular up to rounding; names the smallest rank, the size and, if ``n_inputs``
            is given, the smallest width that works.

    Example:
        >>> kernel_coefficients(4 * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)).tolist()
        [0.25, 0.25]
    """
    _check_learning(kernel, labels)
    smallest, size = int(rank(kernel).min()), kernel.shape[-1]
    if smallest < size:
        # Below this even width the features of the pairs, width / 2 * n_inputs, are fewer than the rows.
        raise SingularKernelError(smallest, size, n_inputs and 2 * -(-size // n_inputs))
    return torch.cholesky_solve(labels.unsqueeze(-1), torch.linalg.cholesky(kernel)).squeeze(-1)


def _check_learning(kernel: Tensor, labels: Tensor) -> None:
    if kernel.ndim < 2 or kernel.shape[-2] != kernel.shape[-1] or not kernel.numel():
        raise ValueError(f"kernel: expected a square matrix for each member, got shape {tuple(kernel.shape)}")
    if labels.shape != kernel.shape[:-1]:
        shape = f"{tuple(kernel.shape[:-1])}, one for each row of the kernel"
        raise ValueError(f"labels: expected shape {shape}, got {tuple(labels.shape)}")
    if not (torch.isfinite(kernel).all() and torch.isfinite(labels).all()):
        raise ValueError("kernel, labels: expected finite numbers, got NaN or infinity")
    uneven, scale = ((part.abs().amax((-2, -1))) for part in (kernel - kernel.mT, kernel))
    if (uneven > torch.finfo(kernel.dtype).eps ** 0.5 * scale).any():
        raise ValueError(f"kernel: expected a symmetric matrix, got one that differs by {float(uneven.max()):.3g}")


def _checked_step_size(scaled_step_size: Tensor | float, eigenvalues: Tensor) -> Tensor:
    """Step sizes with an axis for the eigenvalues; none of them diverges."""
    eta = torch.as_tensor(scaled_step_size, dtype=eigenvalues.dtype, device=eigenvalues.device)
    if not (torch.isfinite(eta) & (eta > 0)).all():
        raise ValueError(f"scaled_step_size: expected positive numbers or None, got {scaled_step_size}")
    if eta.ndim and eta.shape != eigenvalues.shape[:-1]:
        shape = tuple(eigenvalues.shape[:-1])
        raise ValueError(f"scaled_step_size: expected one number or one per member {shape}, got {tuple(eta.shape)}")
    top = eigenvalues[..., -1]
    beyond = (eta * top > 2 * (1 + 1e-12)).flatten()
    if beyond.any():
        member = int(beyond.nonzero()[0, 0])
        sizes, tops = eta.expand_as(top).flatten(), top.flatten()
        raise ValueError(
            f"scaled_step_size: {sizes[member]:g} diverges on the kernel of member {member}; expected at most 2 over "
            f"its largest eigenvalue, {2 / tops[member]:g}; take half of that, or None for the flow, which has no limit"
        )
    return eta.unsqueeze(-1)


def _learned_in_steps(eigenvalues: Tensor, eta: Tensor, steps: Tensor) -> Tensor:
    r"""$(1-(1-\eta\mu)^t)/\mu$; $\eta t$ where $\mu$ is zero, and without cancellation where it is small."""
    rates = eta * eigenvalues
    small = rates < 0.5
    exact = _learned(-steps * torch.log1p(-rates.clamp(max=0.5)), eigenvalues, eta * steps)
    return torch.where(small, exact, (1 - (1 - rates) ** steps) / eigenvalues.clamp(min=1e-300))


def _learned(exponents: Tensor, eigenvalues: Tensor, limit: Tensor) -> Tensor:
    r"""$(1-e^{-\text{exponent}})/\mu$; its limit where $\mu$ is zero."""
    return torch.where(eigenvalues > 0, -torch.expm1(-exponents) / eigenvalues.clamp(min=1e-300), limit)


class _Features:
    """Scalar features of all samples for a range of neurons, ``(members, outputs * samples, neurons)``."""

    def __init__(self, networks: Networks, inputs: Tensor, chunk: int) -> None:
        self.networks, self.inputs = networks, inputs
        if networks.activation == "softmax":
            self.total, self.centre = _denominators(networks, inputs, chunk)

    def __call__(self, start: int, stop: int) -> Tensor:
        part = _part(self.networks, start, stop)
        if part.activation != "softmax":
            return (part.signs.unsqueeze(2) * neuron_derivatives(part, self.inputs).unsqueeze(1)).flatten(1, 2)
        shares = logits(part, self.inputs).sub_(self.total.unsqueeze(2)).exp_().mul_(self.networks.width)
        return (part.signs.unsqueeze(2) - self.centre.unsqueeze(3)).mul_(shares.unsqueeze(1)).flatten(1, 2)


def _denominators(networks: Networks, inputs: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Logarithms of the denominators of softmax, and mean signs under softmax, from one chunk of neurons at a time."""
    total, centre = inputs.new_full(inputs.shape[:2], -math.inf), inputs.new_zeros(())
    for start in range(0, networks.width, chunk):
        part = _part(networks, start, start + chunk)
        found = logits(part, inputs)
        before, total = total, torch.logaddexp(total, found.logsumexp(2))
        shares = found.sub_(total.unsqueeze(2)).exp_()
        centre = (before - total).exp_().unsqueeze(1) * centre + torch.bmm(part.signs, shares.mT)
    return total, centre


def _part(networks: Networks, start: int, stop: int) -> Networks:
    first, signs = (weights[:, :, start:stop] for weights in (networks.first_layer, networks.signs))
    return replace(networks, first_layer=first, signs=signs)
