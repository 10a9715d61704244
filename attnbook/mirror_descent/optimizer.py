r"""Mirror descent with an $\ell_p$ potential, as a torch optimiser.

One step is $\theta\leftarrow\theta-\eta\nabla\mathcal L(W)$ in the mirror space, where
$\theta=\nabla\psi(W)=\mathrm{sign}(W)|W|^{p-1}$; then $W=\mathrm{sign}(\theta)|\theta|^{q-1}$ with $\frac1p+\frac1q=1$.
For $p=2$ it is gradient descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from attnbook.core.update_rules import per_member

__all__ = ["MirrorDescent", "MirrorRule", "precision"]


class MirrorDescent(torch.optim.Optimizer):
    r"""Mirror descent with the potential $\psi=\frac1p\|\cdot\|_{p,p}^p$, for any torch model.

    One step is $\nabla\psi(W)\leftarrow\nabla\psi(W)-\eta\nabla\mathcal L(W)$ ($\ell_p$-AttGD).

    The state is kept in the mirror space in float64 (float32 on devices without it), because a round trip through the
    weights would lose small entries for $p$ near 1. It is read from the weights at the first step; weights that are
    changed from outside afterwards are overwritten by the next step.

    Weights that are exactly zero (biases, shifts of a layer norm) hardly move for $p$ near 1: give them a group of
    their own with ``p=2``.

    Args:
        params: Parameters, or groups of them, each with its own ``lr``, ``p``, ``momentum`` or ``normalized``.
        lr: Step size, not negative.
        p: Exponent of the potential, above 1 and finite; default 2, gradient descent.
        momentum: Heavy-ball momentum of the gradient, in [0, 1), as in ``torch.optim.SGD``; default 0.
        normalized: Whether to take scale-free steps: each gradient is divided by its dual norm $\|\cdot\|_{q,q}$ and
            the step is multiplied by $\max(1,\|W\|_{p,p})^{p-2}$. Then the length of a step does not depend on the
            size of the gradient: steps that keep the direction move weights of norm above 1 by ``lr / (p - 1)``, up to
            terms of higher order in ``lr``. Multiply ``lr`` by ``p - 1`` for equal distances at different ``p``.
        stacked: Whether the first axis of every parameter counts separate models, each with norms of its own
            (only matters when ``normalized``); default false.
        foreach: Whether to update all tensors of a group with torch's multi-tensor kernels; default where all of them
            lie on a CUDA device. Not together with ``normalized``.

    Raises:
        ValueError: If an option is outside its range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([4.0]))
        >>> optimizer = MirrorDescent([weight], lr=3.0, p=1.5)
        >>> weight.sum().backward()  # the mirror image of 4 is 2; 2 - 3 = -1
        >>> optimizer.step()
        >>> weight.item()
        -1.0
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        p: float = 2.0,
        *,
        momentum: float = 0.0,
        normalized: bool = False,
        stacked: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "p": p, "momentum": momentum, "normalized": normalized, "stacked": stacked}
        super().__init__(params, defaults | {"foreach": foreach})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with options of its own.

        Args:
            param_group: ``params`` and any of the options of the optimiser.

        Raises:
            ValueError: If an option is outside its range.
        """
        _check_options(self.defaults | param_group)
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where another optimiser of the same groups stopped, at full precision.

        Args:
            state_dict: What ``state_dict()`` returned.

        Raises:
            ValueError: If the groups do not fit.
        """
        super().load_state_dict(state_dict)
        # torch casts state to the type of the weights; the mirror image must keep its own.
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        weights = [w for group in self.param_groups for w in group["params"]]
        for number, weight in zip(numbers, weights, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[weight][name] = value.detach().clone().to(weight.device, precision(weight.device))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: Evaluates the loss and its gradients anew; default none.

        Returns:
            What ``closure`` returned.

        Raises:
            RuntimeError: If a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            if not weights:
                continue
            if any(w.grad.is_sparse for w in weights):
                raise RuntimeError(
                    "MirrorDescent: got a sparse gradient, which it does not support: the mirror map would have to "
                    "visit every entry; use nn.Embedding(..., sparse=False)"
                )
            mirrored = [self._mirrored(w, group["p"]) for w in weights]
            gradients = [w.grad.to(m.dtype) for w, m in zip(weights, mirrored, strict=True)]
            update = _update_together if _together(group, weights) else _update_each
            update(weights, mirrored, gradients, [self.state[w] for w in weights], group)
        return loss

    def _mirrored(self, weight: Tensor, p: float) -> Tensor:
        state = self.state[weight]
        if "mirrored" not in state:
            w = weight.detach().to(precision(weight.device))
            state["mirrored"] = w.sign() * w.abs().pow(p - 1)
        return state["mirrored"]


@dataclass(frozen=True)
class MirrorRule:
    """The rule with which :func:`attnbook.core.ensemble.train` uses :class:`MirrorDescent`; members may differ.

    Attributes:
        step_size: One number, or one per member.
        p: Exponent of the potential; one number, or one per member.
        momentum: In [0, 1); default 0.
        normalized: Whether steps are scale-free, with norms of each member alone; default false.
    """

    step_size: float | Sequence[float]
    p: float | Sequence[float] = 2.0
    momentum: float = 0.0
    normalized: bool = False

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the options of each member.

        Args:
            members: How many there are.

        Returns:
            One dictionary per member; neighbours with equal ones are updated together.

        Raises:
            ValueError: If there is neither one value nor one per member, or a value is outside its range.
        """
        pairs = zip(per_member("step_size", self.step_size, members), per_member("p", self.p, members), strict=True)
        found = [{"lr": float(step_size), "p": float(p)} for step_size, p in pairs]
        for one in found:
            _check_options({"momentum": self.momentum, **one})
        return found

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the torch optimiser for these parameter groups."""
        return MirrorDescent(groups, 0.0, momentum=self.momentum, normalized=self.normalized, stacked=True)


def precision(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64 (mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


def _update_each(
    weights: list[Tensor], mirrored: list[Tensor], gradients: list[Tensor], states: list[Any], group: dict[str, Any]
) -> None:
    p, momentum = group["p"], group["momentum"]
    for weight, theta, gradient, state in zip(weights, mirrored, gradients, states, strict=True):
        lengths: Tensor | float = 1.0
        if group["normalized"]:
            gradient, lengths = _scale_free(theta, gradient, p, group["stacked"])
        if momentum:
            gradient = _remember(state, gradient, momentum)
        theta.sub_(gradient * lengths if group["normalized"] else gradient, alpha=group["lr"])
        weight.copy_(theta if p == 2 else theta.abs().pow_(1 / (p - 1)).copysign_(theta))


def _update_together(
    weights: list[Tensor], mirrored: list[Tensor], gradients: list[Tensor], states: list[Any], group: dict[str, Any]
) -> None:
    if group["momentum"]:
        pairs = zip(states, gradients, strict=True)
        gradients = [_remember(state, gradient, group["momentum"]) for state, gradient in pairs]
    torch._foreach_add_(mirrored, gradients, alpha=-group["lr"])
    if group["p"] == 2:
        torch._foreach_copy_(weights, mirrored)
        return
    found = torch._foreach_abs(mirrored)
    torch._foreach_pow_(found, 1 / (group["p"] - 1))
    torch._foreach_mul_(found, torch._foreach_sign(mirrored))
    torch._foreach_copy_(weights, found)


def _scale_free(theta: Tensor, gradient: Tensor, p: float, stacked: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient over its dual norm, and the factor that makes a unit step move the weights by 1 / (p - 1)."""
    axes = tuple(range(1 if stacked else 0, theta.ndim))
    q = p / (p - 1)
    tiny = torch.finfo(theta.dtype).tiny
    gradient = gradient / gradient.abs().amax(axes, keepdim=True).clamp_(min=tiny)
    length = gradient.abs().pow(q).sum(axes, keepdim=True).pow(1 / q).clamp_(min=tiny)
    # The p-norm of the weights to the power p is the q-norm of their mirror image to the power q.
    norm = theta.abs().pow(q).sum(axes, keepdim=True).pow(1 / p)
    return gradient / length, norm.clamp_(min=1.0).pow_(p - 2)


def _remember(state: dict[str, Tensor], gradient: Tensor, momentum: float) -> Tensor:
    if "momentum_buffer" in state:
        return state["momentum_buffer"].mul_(momentum).add_(gradient)
    state["momentum_buffer"] = gradient.clone()
    return state["momentum_buffer"]


def _together(group: dict[str, Any], weights: list[Tensor]) -> bool:
    if group["normalized"]:
        return False
    return group["foreach"] if group["foreach"] is not None else all(w.is_cuda for w in weights)


def _check_options(options: dict[str, Any]) -> None:
    lr, p, momentum = float(options["lr"]), float(options["p"]), float(options["momentum"])
    if not 0 <= lr < math.inf:
        raise ValueError(f"lr: expected a finite number of at least 0, got {lr}")
    if not 1 < p < math.inf:
        raise ValueError(f"p: expected a finite number above 1, got {p}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum: expected at least 0 and less than 1, got {momentum}")
    if options.get("foreach") and options.get("normalized"):
        raise ValueError("foreach: not together with normalized, whose norms are taken tensor by tensor")
