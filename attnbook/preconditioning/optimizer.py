r"""Algorithm 1 as tools for your own code, and the rivals it is compared with.

:func:`spectral_init` and :class:`StructureAwareGD` work on any pair of a value matrix $U$ and a key-query matrix $V$
with a score $x_j^\top Vx_i$ and an output $Us_i$: train your own attention layer with them. :class:`MuonLike` and
:class:`ShampooLike` are small batched versions of two optimisers that precondition without knowing the covariance.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.update_rules import Stepper, per_member
from attnbook.preconditioning.population import (
    check_covariance,
    check_parts,
    penalty_gradient,
    precondition,
    sample_covariance,
    spectral_factors,
)

__all__ = ["LARGEST_SIGNAL", "MuonLike", "ShampooLike", "StructureAwareGD", "spectral_init"]

LARGEST_SIGNAL = 0.5
r"""Largest $s_1$ for which $E e^{x^\top V^\top\Sigma Vx}$ is finite at the minima; the paper's is missing."""
NO_RATE = (
    "Assumption 2 fails; the smallest singular value of A Sigma^(1/2) is zero, "
    "so the guaranteed rate degenerates to zero"
)


def spectral_init(
    x: Float[Tensor, "*batch samples dimension"], y: Float[Tensor, "*batch labels outputs"]
) -> tuple[Float[Tensor, "*batch outputs dimension"], Float[Tensor, "*batch dimension dimension"]]:
    r"""Return the start of Algorithm 1, read off one singular value decomposition.

    Lines 1 and 2: $\hat\Sigma=X^\top X/n$, $\hat A=Y^\top X(X^\top X)^{-1}$, $\hat A\hat\Sigma^{1/2}=PDR^\top$, then
    $U_0=PD^{1/2}\hat\Sigma^{-1/2}$ and $V_0=\hat\Sigma^{-1/2}D^{1/2}R^\top\hat\Sigma^{-1/2}$. So $U_0\hat\Sigma V_0$ is
    the least squares map and the layers are in balance.

    Args:
        x: Inputs with mean zero, one sample per row.
        y: Labels.

    Returns:
        ``value`` and ``key_query``, in the dtype of ``x`` (computed in float64).

    Raises:
        ValueError: If an argument is no matrix of finite floating point numbers, the numbers of samples differ, or
            there are too few samples for a covariance of full rank.

    Warns:
        UserWarning: If there are fewer outputs than inputs or a singular value of $\hat A\hat\Sigma^{1/2}$ is zero
            (Assumption 2 fails), or the largest one is at least :data:`LARGEST_SIGNAL` (Assumption 3 surely fails).

    Example:
        >>> x = torch.eye(2).repeat(3, 1)
        >>> value, key_query = spectral_init(x, x @ torch.tensor([[0.1, 0.0], [0.0, 0.2]]))
        >>> bool(torch.allclose(value @ (x.T @ x / 6) @ key_query, torch.tensor([[0.1, 0.0], [0.0, 0.2]])))
        True
    """
    for name, tensor in {"x": x, "y": y}.items():
        if tensor.ndim < 2 or not tensor.is_floating_point():
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ValueError(f"{name}: expected floating point numbers with one sample per row, got {got}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    if x.shape[-2] != y.shape[-2]:
        raise ValueError(f"y: expected one label per input, {x.shape[-2]}, got {y.shape[-2]}")
    inputs, labels = x.double(), y.double()
    covariance = sample_covariance(inputs)
    check_covariance(covariance)
    least_squares = torch.linalg.solve(covariance, inputs.mT @ labels / x.shape[-2]).mT
    value, key_query, singular = spectral_factors(least_squares, covariance)
    warn_about_assumptions(singular, y.shape[-1])
    return value.to(x.dtype), key_query.to(x.dtype)


class StructureAwareGD(torch.optim.Optimizer):
    r"""Algorithm 1: gradient descent with a balance penalty and a preconditioner made from the covariance.

    Each step takes the gradients that ``backward`` left behind, adds the gradient of $\lambda\mathcal R$
    (:func:`~attnbook.preconditioning.population.penalty_gradient`), preconditions the sum and subtracts
    ``step_size`` times the result. The penalty needs no autograd: leave it out of your loss. The gradients may also be
    set by hand, from :func:`~attnbook.preconditioning.attention.in_sample_loss_and_gradient` on all samples.
    ``state_dict`` holds the covariance too: training continues from it as it was.

    Args:
        value: $U$, ``(..., n_outputs, dimension)``; a leaf that requires a gradient.
        key_query: $V$, ``(..., dimension, dimension)``, with score $x_j^\top Vx_i$; likewise.
        covariance: $\Sigma$, or :func:`~attnbook.preconditioning.population.sample_covariance` of your inputs.
        step_size: $\eta$, positive; near the minima the method is stable below $1/s_1$, one over the largest singular
            value of $A\Sigma^{1/2}$. It stands as ``lr`` in ``param_groups``, where schedulers find it.
        preconditioner: ``two`` (both sides, the default: the rate is free of the condition number), ``left`` (one side,
            the literal reading of the text available to us) or ``none``.
        penalty: Weight $\lambda$ of the regulariser, at least 0; default 1, the algorithm's.

    Raises:
        ValueError: If shapes do not fit, a number is outside its range, or the covariance is not symmetric and positive
            definite.

    Warns:
        UserWarning: If there are fewer outputs than inputs: Assumption 2 fails.

    Example:
        >>> value, key_query = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
        >>> optimizer = StructureAwareGD(value, key_query, covariance=torch.eye(1), step_size=0.5)
        >>> (value @ key_query - 0.25).square().sum().div(2).backward()
        >>> optimizer.step()
        >>> value.item()
        0.625
    """

    def __init__(
        self,
        value: Tensor,
        key_query: Tensor,
        *,
        covariance: Tensor,
        step_size: float,
        preconditioner: str = "two",
        penalty: float = 1.0,
    ) -> None:
        _check_layers(value, key_query, covariance)
        per_member("step_size", step_size, 1)
        check_parts(preconditioner, penalty)
        check_covariance(covariance)
        warn_about_sizes(value.shape[-2], value.shape[-1])
        super().__init__([value, key_query], {"lr": step_size, "preconditioner": preconditioner, "penalty": penalty})
        inverse = torch.linalg.inv(covariance.detach().double())
        self.state[value] = {"covariance": covariance.detach().to(value), "inverse_covariance": inverse.to(value)}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a second group: the method is about one pair of layers, or one stack of them.

        Args:
            param_group: As in ``torch.optim``.

        Raises:
            ValueError: If the optimiser has its layers already.
        """
        if self.param_groups:
            raise ValueError("param_group: expected none besides value and key_query; build one optimiser per layer")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Evaluates the loss again and returns it; default none.

        Returns:
            What the closure returned, or None.

        Raises:
            RuntimeError: If one of the two matrices has no gradient.
            FloatingPointError: If a gradient is not finite; nothing has changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,) = self.param_groups
        value, key_query = group["params"]
        if value.grad is None or key_query.grad is None:
            raise RuntimeError("step: value and key_query need gradients; call backward() on a loss that uses both")
        for name, layer in {"value": value, "key_query": key_query}.items():
            if bad := int((~layer.grad.isfinite()).sum()):
                raise FloatingPointError(
                    f"StructureAwareGD: the gradient of {name} has {bad} NaN or infinite among its {layer.numel()} "
                    "entries; nothing was updated"
                )
        state = self.state[value]
        penalty = penalty_gradient(value, key_query, covariance=state["covariance"])
        sums = (value.grad + group["penalty"] * penalty[0], key_query.grad + group["penalty"] * penalty[1])
        directions = precondition(sums, state["inverse_covariance"], group["preconditioner"])
        for matrix, direction in zip((value, key_query), directions, strict=True):
            matrix.sub_(direction, alpha=group["lr"])
        return loss


@dataclass(frozen=True)
class _MatrixRule(ABC):
    """An update rule whose direction for a stack of matrices comes from :meth:`direction`."""

    step_size: float | Sequence[float]  #: One number, or one per member

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the step size of each member."""
        return [{"lr": float(size)} for size in per_member("step_size", self.step_size, members)]

    def build(self, groups: list[dict[str, Any]]) -> Stepper:
        """Return the optimiser for these parameter groups."""
        return _PerMatrix(groups, self.direction)

    @abstractmethod
    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the direction of a step for each matrix of a stack; ``state`` is kept from step to step."""


@dataclass(frozen=True)
class MuonLike(_MatrixRule):
    r"""Nesterov momentum, then $PR^\top$ of each matrix $PDR^\top$: Muon with an exact singular value decomposition."""

    momentum: float = 0.95  #: In [0, 1); default 0.95, as in Muon

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected at least 0 and less than 1, got {self.momentum!r}")

    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the polar factors of gradient and momentum."""
        velocity = state.setdefault("velocity", torch.zeros_like(gradient))
        velocity.mul_(self.momentum).add_(gradient)
        left, _, right = torch.linalg.svd(gradient + self.momentum * velocity, full_matrices=False)
        return left @ right


@dataclass(frozen=True)
class ShampooLike(_MatrixRule):
    r"""Shampoo: $L^{-1/4}GR^{-1/4}$ with sums $L$ of $GG^\top$ and $R$ of $G^\top G$, the roots fresh at every step."""

    floor: float = 1e-6  #: Smallest eigenvalue used in a root; default 1e-6

    def __post_init__(self) -> None:
        if not self.floor > 0:
            raise ValueError(f"floor: expected a positive number, got {self.floor!r}")

    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the gradients between their roots."""
        exact = gradient.double()  # sums of squares span more orders of magnitude than float32 resolves
        roots = []
        for name, gram in {"left": exact @ exact.mT, "right": exact.mT @ exact}.items():
            state[name] = state[name] + gram if name in state else gram
            eigenvalues, axes = torch.linalg.eigh(state[name])
            roots.append((axes * eigenvalues.clamp(min=self.floor).pow(-0.25).unsqueeze(-2)) @ axes.mT)
        return (roots[0] @ exact @ roots[1]).to(gradient)


class _PerMatrix:
    def __init__(self, groups: list[dict[str, Any]], direction: Callable[[Tensor, dict[str, Tensor]], Tensor]) -> None:
        self.param_groups, self.direction = groups, direction
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for stack in group["params"]:
                # A member that has diverged becomes NaN; the decompositions of the others must not fail on it.
                lost = ~stack.grad.isfinite().flatten(1).all(1)
                gradient = torch.nan_to_num(stack.grad, nan=0.0, posinf=0.0, neginf=0.0)
                direction = self.direction(gradient, self.state[stack])
                direction[lost] = torch.nan
                stack.sub_(direction, alpha=group["lr"])


def warn_about_assumptions(singular_values: Float[Tensor, "*batch dimension"], n_outputs: int) -> None:
    r"""Warn when Assumption 2 or 3 fails for these singular values of $A\Sigma^{1/2}$, and say what degenerates."""
    dimension, largest = singular_values.shape[-1], float(singular_values.max())
    warn_about_sizes(n_outputs, dimension, stacklevel=4)
    threshold = dimension * torch.finfo(singular_values.dtype).eps * largest
    if n_outputs >= dimension and float(singular_values.min()) <= threshold:
        warnings.warn(f"y: linearly dependent columns of the least squares map: {NO_RATE}", stacklevel=3)
    if largest >= LARGEST_SIGNAL:
        warnings.warn(
            f"y: the largest singular value of A Sigma^(1/2) is {largest:.3g}; from {LARGEST_SIGNAL} on "
            "E exp(q), which the 1/n term needs, is infinite (Assumption 3); divide the labels by a constant",
            stacklevel=3,
        )


def warn_about_sizes(n_outputs: int, dimension: int, *, stacklevel: int = 3) -> None:
    """Warn when there are fewer outputs than inputs; ``stacklevel`` is whose line the warning names."""
    if n_outputs < dimension:
        warnings.warn(f"fewer outputs ({n_outputs}) than inputs ({dimension}): {NO_RATE}", stacklevel=stacklevel)


def _check_layers(value: Tensor, key_query: Tensor, covariance: Tensor) -> None:
    for name, tensor in {"value": value, "key_query": key_query}.items():
        if tensor.ndim < 2 or not torch.isfinite(tensor).all():
            raise ValueError(f"{name}: expected finite matrices, got shape {tuple(tensor.shape)}")
    dimension = value.shape[-1]
    for name, tensor in {"key_query": key_query, "covariance": covariance}.items():
        if tensor.shape[-2:] != (dimension, dimension):
            shapes = f"to fit value {tuple(value.shape)}, got {tuple(tensor.shape)}"
            raise ValueError(f"{name}: expected (..., {dimension}, {dimension}) {shapes}")
