r"""Algorithm 1 with three gradients: of the population loss plus $\mathcal B/n$, of fresh batches, of one data set.

In whitened coordinates, where inputs are standard Gaussian and the two-sided preconditioner does nothing but undo the
estimate of the covariance. Members share sizes; every trajectory is recorded as its excess loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.attention import loss_and_gradient
from attnbook.preconditioning.attention_output import expected_excess
from attnbook.preconditioning.law_constants import bias_coefficient, curvature_inverse
from attnbook.preconditioning.population import penalty_gradient, precondition, sample_covariance

__all__ = [
    "data_descent",
    "distance_to_minima",
    "exact_fixed_point",
    "excess",
    "fresh_batch_average",
    "oracle_descent",
    "pull_along_descent",
    "whitened_minimum",
]

Layers = tuple[Tensor, Tensor]


def whitened_minimum(target: Float[Tensor, "*batch outputs dimension"]) -> Layers:
    r"""Return the balanced minimum $\tilde U=PD^{1/2}$, $\tilde V=D^{1/2}R^\top$ of $\tilde A=PDR^\top$.

    Args:
        target: $\tilde A$ of full column rank.

    Returns:
        $\tilde U$ and $\tilde V$.
    """
    left, values, right = torch.linalg.svd(target, full_matrices=False)
    half = values.sqrt()
    return left * half.unsqueeze(-2), half.unsqueeze(-1) * right


def excess(layers: Layers, target: Float[Tensor, "*#batch outputs dimension"]) -> Float[Tensor, "*batch"]:
    r"""Return $L-L^*=\frac12\|\tilde U\tilde V-\tilde A\|_F^2$.

    Args:
        layers: $\tilde U$ and $\tilde V$.
        target: $\tilde A$.

    Returns:
        The excess loss of each member.
    """
    return 0.5 * (layers[0] @ layers[1] - target).square().sum((-2, -1))


def distance_to_minima(layers: Layers, target: Float[Tensor, "*#batch outputs dimension"]) -> Float[Tensor, "*batch"]:
    r"""Return the squared distance to the nearest balanced minimum, over all rotations $Q$ (Procrustes).

    Args:
        layers: $\tilde U$ and $\tilde V$.
        target: $\tilde A$.

    Returns:
        $\|Z-\Pi(Z)\|_F^2$ of each member, with $Z$ the layers stacked.

    Example:
        >>> one = torch.eye(2, dtype=torch.float64)
        >>> round(float(distance_to_minima((one, 2 * one), one)), 9)  # the identity, twice: 1 of each entry is too much
        2.0
    """
    minimum = whitened_minimum(target)
    overlap = minimum[0].mT @ layers[0] + minimum[1] @ layers[1].mT
    sizes = sum(layer.square().sum((-2, -1)) for layer in (*layers, *minimum))
    return sizes - 2 * torch.linalg.svdvals(overlap).sum(-1)


def oracle_descent(
    target: Float[Tensor, "outputs dimension"],
    n_samples: Float[Tensor, " members"],
    start: Layers,
    *,
    step_size: float,
    steps: int,
) -> tuple[Float[Tensor, "records members"], Layers]:
    r"""Follow the gradient of $L+\mathcal R+\mathcal B/n$: the gradient oracle to first order in $1/n$.

    Args:
        target: $\tilde A$; float64.
        n_samples: $n$ of each member; infinite for the population loss.
        start: $\tilde U$ and $\tilde V$, ``(members, ...)``.
        step_size: Step size.
        steps: Number of steps.

    Returns:
        Excess loss before each step and at the end, and the layers at the end.

    Raises:
        ValueError: If a run leaves the region where the coefficient is finite.
    """
    layers = start
    records = [excess(layers, target)]
    for _ in range(steps):
        leaves = [layer.detach().requires_grad_() for layer in layers]
        pulls = torch.autograd.grad((bias_coefficient(*leaves, target=target) / n_samples).sum(), leaves)
        sums = [a + b for a, b in zip(_regularised(layers, target), pulls, strict=True)]
        layers = (layers[0] - step_size * sums[0], layers[1] - step_size * sums[1])
        records.append(excess(layers, target))
    return torch.stack(records), layers


def pull_along_descent(
    target: Float[Tensor, "outputs dimension"], start: Layers, *, step_size: float, steps: int
) -> Float[Tensor, " records"]:
    r"""Return $\|\nabla\mathcal B\|_F^2$ along the descent on the population loss plus the regulariser.

    Divided by $n^2$ it is the squared bias of the oracle's gradient at each step, to leading order.

    Args:
        target: $\tilde A$; float64.
        start: $\tilde U$ and $\tilde V$.
        step_size: Step size.
        steps: Number of steps.

    Returns:
        One number before each step and at the end.

    Raises:
        ValueError: If the descent leaves the region where the coefficient is finite.
    """
    layers, records = start, []
    for _ in range(steps + 1):
        leaves = [layer.detach().requires_grad_() for layer in layers]
        pulls = torch.autograd.grad(bias_coefficient(*leaves, target=target), leaves)
        records.append(torch.stack([pull.square().sum() for pull in pulls]).sum())
        sums = _regularised(layers, target)
        layers = (layers[0] - step_size * sums[0], layers[1] - step_size * sums[1])
    return torch.stack(records)


def exact_fixed_point(
    target: Float[Tensor, "outputs dimension"], n_keys: int, *, nodes: tuple[Tensor, Tensor], iterations: int
) -> Layers:
    r"""Find where the expected gradient of Algorithm 1 over batches of $n$ keys vanishes: no expansion, no draws.

    From the balanced minimum, $\theta\leftarrow\theta-\nabla^2(L+\mathcal R)^+\,\nabla(\mathbb EL_n+\mathcal R)$: with
    the curvature at the minimum it contracts by a factor of order $1/n$. The pseudo-inverse keeps the rotation of the
    start: along rotations the pull is of order $n^{-2}$ only.

    Args:
        target: $\tilde A$; float64.
        n_keys: $n$, at least 3.
        nodes: Queries and their masses, as from
            :func:`~attnbook.preconditioning.attention_output.gaussian_nodes`.
        iterations: Number of iterations.

    Returns:
        $\tilde U$ and $\tilde V$.
    """
    layers = whitened_minimum(target)
    inverse, shape = curvature_inverse(*layers), layers[0].shape
    for _ in range(iterations):
        leaves = [layer.detach().requires_grad_() for layer in layers]
        bias = expected_excess(*leaves, target=target, n_keys=(n_keys,), nodes=nodes)
        pulls = torch.autograd.grad(bias.sum(), leaves)
        total = [(a + b).flatten() for a, b in zip(_regularised(layers, target), pulls, strict=True)]
        step = inverse @ torch.cat(total)
        layers = (layers[0] - step[: shape.numel()].view(shape), layers[1] - step[shape.numel() :].view(shape[1], -1))
    return layers


@torch.no_grad()
def fresh_batch_average(
    target: Float[Tensor, "outputs dimension"],
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    step_size: float,
    steps: int,
    kept: int,
) -> Float[Tensor, ""]:
    r"""Run Algorithm 1 from an optimum on gradients averaged over many fresh batches; return the excess of the mean.

    Args:
        target: $\tilde A$; float64.
        batches: Yields inputs ``(batches, samples, dimension)`` and labels for each step.
        step_size: Step size.
        steps: Number of steps.
        kept: The layers of this many last steps are averaged.

    Returns:
        Excess loss at the mean of the last layers.
    """
    layers, total = whitened_minimum(target), [torch.zeros(()), torch.zeros(())]
    one = torch.eye(target.shape[-1], dtype=target.dtype)
    for step, (inputs, labels) in zip(range(steps), batches, strict=False):
        repeated = {
            name: layer.to(inputs.dtype).expand(len(inputs), -1, -1)
            for name, layer in zip(("value", "key_query"), layers, strict=True)
        }
        _, gradients = loss_and_gradient(repeated, (inputs, labels))
        penalty = penalty_gradient(*layers, covariance=one)
        mean = (gradients["value"].mean(0).double(), gradients["key_query"].mean(0).double())
        layers = (
            layers[0] - step_size * (mean[0] + penalty[0]),
            layers[1] - step_size * (mean[1] + penalty[1]),
        )
        if step >= steps - kept:
            total = [a + b / kept for a, b in zip(total, layers, strict=True)]
    return excess((total[0], total[1]), target)


@torch.no_grad()
def data_descent(
    target: Float[Tensor, "outputs dimension"],
    data: tuple[Float[Tensor, "sets samples dimension"], Float[Tensor, "sets samples outputs"]],
    start: Layers,
    *,
    step_size: float,
    steps: int,
) -> Float[Tensor, "records sets"]:
    r"""Run Algorithm 1 on all of each data set at every step, with the two-sided preconditioner.

    Args:
        target: $\tilde A$; float64.
        data: Whitened inputs and their labels, one data set per member; float64.
        start: $\tilde U$ and $\tilde V$, ``(sets, ...)``.
        step_size: Step size.
        steps: Number of steps.

    Returns:
        Excess loss before each step and at the end. Gradients are computed in float32.
    """
    estimate = sample_covariance(data[0])
    inverse = torch.linalg.inv(estimate)
    batch = (data[0].float(), data[1].float())
    layers = start
    records = [excess(layers, target)]
    for _ in range(steps):
        _, found = loss_and_gradient({"value": layers[0].float(), "key_query": layers[1].float()}, batch)
        penalty = penalty_gradient(*layers, covariance=estimate)
        sums = (found["value"].double() + penalty[0], found["key_query"].double() + penalty[1])
        directions = precondition(sums, inverse, "two")
        layers = (layers[0] - step_size * directions[0], layers[1] - step_size * directions[1])
        records.append(excess(layers, target))
    return torch.stack(records)


def _regularised(layers: Layers, target: Tensor) -> Layers:
    """Gradient of the population loss plus the regulariser."""
    value, key_query = layers
    error, difference = value @ key_query - target, value.mT @ value - key_query @ key_query.mT
    return error @ key_query.mT + value @ difference / 2, value.mT @ error - difference @ key_query / 2
