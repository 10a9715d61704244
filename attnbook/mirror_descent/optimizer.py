r"""Mirror descent with an $\ell_p$ potential, as a torch optimiser.

One step is $\theta\leftarrow\theta-\eta\nabla\mathcal L(W)$ in the mirror space, where
$\theta=\nabla\psi(W)=\mathrm{sign}(W)|W|^{p-1}$; then $W=\mathrm{sign}(\theta)|\theta|^{q-1}$ with $\frac1p+\frac1q=1$.
For $p=2$ it is gradient descent.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from attnbook.core.update_rules import per_member
from attnbook.mirror_descent.mirror_steps import (
    described,
    mirrored,
    read_again,
    refuse_gradients,
    remapped,
    update_each,
    update_together,
)

__all__ = ["MirrorDescent", "MirrorRule", "precision"]


class MirrorDescent(torch.optim.Optimizer):
    r"""Mirror descent with the potential $\psi=\frac1p\|\cdot\|_{p,p}^p$, for any torch model.

    One step is $\nabla\psi(W)\leftarrow\nabla\psi(W)-\eta\nabla\mathcal L(W)$ ($\ell_p$-AttGD).

    The state is kept in the mirror space in float64 (float32 on devices without it), because a round trip through the
    weights would lose small entries for $p$ near 1. It is read from the weights at the first step, and read again for
    entries that something else has changed since then, such as ``load_state_dict`` of the model or a projection under
    ``torch.no_grad()``. In-place changes of ``weight.data`` are hidden from torch and are undone by the next step. An
    exponent may change between steps: the state is mapped to the new mirror space.

    Weights that are exactly zero (biases, shifts of a layer norm) hardly move for $p$ near 1: give them a group of
    their own with ``p=2``. There is no dampening and no Nesterov momentum.

    Args:
        params: Parameters, ``model.named_parameters()`` (then errors name them), or groups of them, each with its own
            options.
        lr: Step size, not negative.
        p: Exponent of the potential, above 1 and finite; default 2, gradient descent.
        momentum: Heavy-ball momentum of the gradient, in [0, 1), as in ``torch.optim.SGD``; default 0.
        weight_decay: Adds this multiple of the potential to the loss, whose gradient is that multiple of the mirror
            image; at ``p=2`` the weight decay of ``torch.optim.SGD``. Not negative; default 0.
        normalized: Whether to take scale-free steps: each gradient is divided by its dual norm $\|\cdot\|_{q,q}$ and
            the step is multiplied by $\max(1,\|W\|_{p,p})^{p-2}$. Then the length of a step does not depend on the
            size of the gradient: steps that keep the direction move weights of norm above 1 by ``lr / (p - 1)``, up to
            terms of higher order in ``lr``. Multiply ``lr`` by ``p - 1`` for equal distances at different ``p``.
        stacked: Whether the first axis of every parameter counts separate models, each with norms of its own
            (only matters when ``normalized``); default false.
        maximize: Whether to go up the gradient; default false.
        foreach: Whether to update all tensors of a group with torch's multi-tensor kernels, at the price of a
            temporary copy of all gradients in float64; default where all of them lie on a CUDA device. Not together
            with ``normalized``.
        error_if_nonfinite: Whether a gradient with a NaN or an infinity is an error, raised before anything has
            changed; on a CUDA device the check waits for the gradients. Default true.

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
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]],
        lr: float,
        p: float = 2.0,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        normalized: bool = False,
        stacked: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        error_if_nonfinite: bool = True,
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "p": p, "momentum": momentum, "weight_decay": weight_decay}
        defaults |= {"normalized": normalized, "stacked": stacked, "maximize": maximize, "foreach": foreach}
        self._written: dict[Tensor, tuple[int, int]] = {}
        super().__init__(params, defaults | {"error_if_nonfinite": error_if_nonfinite})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read a state, which may be older than some options."""
        super().__setstate__(state)
        self._written = {}
        for group in self.param_groups:
            for name, value in {"weight_decay": 0.0, "maximize": False, "error_if_nonfinite": True}.items():
                group.setdefault(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, ``params``, with any of the options of the optimiser.

        Raises:
            ValueError: If an option is outside its range.
            TypeError: If a parameter is not of real floating point numbers.
        """
        _check_options(self.defaults | param_group)
        # Unwrapped: torch's decorator imports its compiler, which takes longer than most trainings here.
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        for number, weight in enumerate(group["params"]):
            if not weight.is_floating_point():
                named = described(len(self.param_groups) - 1, group, number)
                self.param_groups.pop()
                raise TypeError(
                    f"params: {named} has type {weight.dtype}, expected real floating point numbers: the mirror map "
                    "acts on the size and the sign of each (torch.view_as_real gives the parts of complex ones)"
                )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at full precision where another optimiser of the same groups stopped, from its ``state_dict()``.

        Raises:
            ValueError: If the groups or shapes do not fit.
        """
        given: list[dict[str, Any]] = []
        # torch casts the state to the type of the weights; the mirror image must keep its own. These two hooks run
        # next to torch's own work: after all that may change what is loaded, before all that may look at the outcome.
        before = self.register_load_state_dict_pre_hook(lambda _, loaded: given.append(loaded))
        after = self.register_load_state_dict_post_hook(lambda _: self._keep_precision(given[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _keep_precision(self, loaded: dict[str, Any]) -> None:
        numbers = [n for group in loaded["param_groups"] for n in group["params"]]
        weights = [
            (described(i, group, j), w)
            for i, group in enumerate(self.param_groups)
            for j, w in enumerate(group["params"])
        ]
        for number, (name, weight) in zip(numbers, weights, strict=True):
            for key, value in loaded["state"].get(number, {}).items():
                if value.shape != weight.shape:
                    raise ValueError(
                        f"state_dict: {key} of {name}: expected shape {tuple(weight.shape)}, got {tuple(value.shape)}"
                    )
                dtype = precision(weight.device)
                if torch.finfo(value.dtype).bits < torch.finfo(dtype).bits:
                    warnings.warn(
                        f"state_dict: {key} of {name} comes in {value.dtype} and is widened to {dtype}; "
                        "what rounding took from it is lost",
                        stacklevel=2,
                    )
                self.state[weight][key] = value.detach().clone().to(weight.device, dtype)

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
            FloatingPointError: If a gradient is not finite; names the parameter. No weight and no state has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refuse_gradients(self.param_groups)
        moved = [[w for w in group["params"] if w.grad is not None and w.numel()] for group in self.param_groups]
        states = [self._states(weights, group) for weights, group in zip(moved, self.param_groups, strict=True)]
        for weights, known, group in zip(moved, states, self.param_groups, strict=True):
            if weights:
                (update_together if _together(group, weights) else update_each)(weights, known, group)
        # Last: weights of several groups may be parts of one tensor, which counts the changes of all of them.
        self._written.update((weight, _version(weight)) for weights in moved for weight in weights)
        return loss

    def _states(self, weights: list[Tensor], group: dict[str, Any]) -> list[dict[str, Tensor]]:
        """The states of weights at the exponent of their group; new where there is none or the weights are others."""
        p = group["p"]
        before = group.setdefault("mirrored_at", p)
        if before != p:
            _check_options(group)
            for known in (self.state[w] for w in group["params"] if w in self.state):
                known["mirrored"] = remapped(known["mirrored"], before, p)
            group["mirrored_at"] = p
        states = [self.state[w] for w in weights]
        for weight, state in zip(weights, states, strict=True):
            if "mirrored" not in state:
                state["mirrored"] = mirrored(weight, p, precision(weight.device))
            elif self._written.get(weight) != _version(weight):
                state["mirrored"] = read_again(state["mirrored"], weight, p)
            if group["momentum"] and "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(state["mirrored"])
        return states


@dataclass(frozen=True)
class MirrorRule:
    """The rule with which :func:`attnbook.core.ensemble.train` uses :class:`MirrorDescent`; members may differ."""

    step_size: float | Sequence[float]  #: One number, or one per member
    p: float | Sequence[float] = 2.0  #: Exponent of the potential; one number, or one per member
    momentum: float = 0.0  #: In [0, 1); default 0
    normalized: bool = False  #: Whether steps are scale-free, with norms of each member alone; default false

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the options of each of so many members; neighbours with equal ones are updated together."""
        pairs = zip(per_member("step_size", self.step_size, members), per_member("p", self.p, members), strict=True)
        found = [{"lr": float(step_size), "p": float(p)} for step_size, p in pairs]
        for one in found:
            _check_options({"momentum": self.momentum, **one})
        return found

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the torch optimiser for these parameter groups."""
        # The ensemble watches the losses itself, member by member.
        return MirrorDescent(
            groups, 0.0, momentum=self.momentum, normalized=self.normalized, stacked=True, error_if_nonfinite=False
        )


def precision(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64 (mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


def _version(weight: Tensor) -> tuple[int, int]:
    """Return what is another where a weight was changed: torch's count of the changes in place, and the memory."""
    return weight._version, weight.data_ptr()


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
    if not 0 <= (decay := float(options.get("weight_decay", 0.0))) < math.inf:
        raise ValueError(f"weight_decay: expected a finite number of at least 0, got {decay}")
    if options.get("foreach") and options.get("normalized"):
        raise ValueError("foreach: not together with normalized, whose norms are taken tensor by tensor")
