"""Train many small networks as one batched program, each with a step size of its own.

Every parameter carries a leading *member* axis, ``(members, ...)``. There is one loss per member, and an optimiser that
acts on each entry alone, so members never mix: the result is exactly the training of each network by itself, at a
fraction of the time. This is :mod:`attnbook.core.ensemble` with step sizes that are broadcast instead of grouped, and
with any optimiser of torch; what does not differ comes from there, until the last chapter has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Gradient, History, Parameters, autograd, log_spaced
from attnbook.core.update_rules import FUSED, cosine, per_member
from attnbook.lab import track

__all__ = ["SGD", "Adam", "Optimizer", "autograd", "cosine", "log_spaced", "train"]


class Optimizer(Protocol):
    """An update rule that acts on each entry alone."""

    @property
    def step_size(self) -> float | Sequence[float]:
        """One positive number, or one per member."""

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        """Return what moves these parameters in place.

        Args:
            parameters: The tensors.
            rate: The step size of each member, ``(members,)``.

        Returns:
            A function of the gradients and a factor on the step sizes.
        """


@dataclass(frozen=True)
class SGD(update_rules.SGD):
    """Gradient descent, with heavy-ball momentum where that is positive.

    Attributes:
        step_size: One positive number, or one per member.
        momentum: In [0, 1); default 0.
    """

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        """Return the rule for these parameters."""
        speed: Parameters = {}

        def move(gradients: Parameters, factor: float) -> None:
            for name, tensor in parameters.items():
                gradient = gradients[name]
                if self.momentum:
                    gradient = speed[name] = gradient + self.momentum * speed[name] if name in speed else gradient
                tensor.addcmul_(gradient, _over(rate, tensor), value=-factor)

        return move


@dataclass(frozen=True)
class Adam(update_rules.Adam):
    """Adam (Kingma and Ba, 2015) with bias correction.

    Attributes:
        step_size: One positive number, or one per member.
        betas: Decay of the first and second moment, each in [0, 1); default as in the paper by Kingma and Ba.
        eps: Positive, added to the denominator; default as in the paper by Kingma and Ba.
    """

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        """Return the rule for these parameters.

        Torch's fused kernel knows one step size only. With several it moves zeros by one, and these the parameters.
        """
        tensors, shared = list(parameters.values()), rate[0].item() if (rate == rate[0]).all() else None
        moved = tensors if shared else [torch.zeros_like(tensor) for tensor in tensors]
        first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
        counts = [torch.zeros((), dtype=torch.float32, device=tensor.device) for tensor in tensors]
        options = FUSED | {"beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps, "amsgrad": False}

        def move(gradients: Parameters, factor: float) -> None:
            slopes = [gradients[name].contiguous() for name in parameters]  # fused kernels walk through memory
            adam(moved, slopes, first, second, [], counts, lr=factor * (shared or 1.0), **options)
            if shared is None:
                for tensor, by in zip(tensors, moved, strict=True):
                    tensor.addcmul_(by, _over(rate, tensor))
                    by.zero_()

        return move


@torch.no_grad()
def train(
    value_and_grad: Gradient,
    parameters: Parameters,
    batches: Callable[[int], Any] = lambda step: None,
    *,
    optimizer: Optimizer | Callable[[list[Tensor]], torch.optim.Optimizer],
    steps: int,
    record: Callable[[Parameters], Mapping[str, Tensor]],
    record_at: Iterable[int] | None = None,
    project: Callable[[Parameters], object] | None = None,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    schedule: Callable[[int], float] = lambda step: 1.0,
    on_divergence: Literal["raise", "record"] = "raise",
    names: Sequence[str] | None = None,
) -> History:
    """Train all members together and record statistics along the way.

    Args:
        value_and_grad: (parameters, batch) to (loss ``(members,)``, gradients); a closed form, or :func:`autograd` of
            a loss.
        parameters: Initial values, each ``(members, ...)``; they are copied, not changed. Where some require a
            gradient, the others are frozen, as ``torch.func.stack_module_state`` gives them for frozen layers.
        batches: Step number to batch, called with 0, 1, ..., ``steps - 1``; default none.
        optimizer: :class:`SGD`, :class:`Adam`, another :class:`Optimizer`, or a function that makes an optimiser of
            torch from a list of tensors, such as ``lambda t: torch.optim.AdamW(t, lr=0.1)``.
        steps: Number of steps, at least 1.
        record: Parameters to statistics, each ``(members, ...)``.
        record_at: Steps to record at; default 12 log-spaced ones.
        project: Changes the parameters in place after each step (a constraint); default none.
        stop: Recorded statistics to a mask ``(members,)`` of members that are done: they keep their values from then
            on, and training ends when all are done; default never.
        schedule: Step number to a factor on the step sizes, such as :func:`cosine`; default 1.
        on_divergence: ``raise``, or ``record`` where divergence is a result. Default ``raise``.
        names: What to call the members in messages; default their number.

    Returns:
        The history.

    Raises:
        ValueError: If an argument is outside its range or the shapes do not fit.
        FloatingPointError: If a loss, a statistic or a parameter that is returned is NaN or infinite, unless that is
            to be recorded; names member, step and step size.
    """
    members = ensemble._count_members(parameters)
    steps, wanted = ensemble._check_schedule(steps, None if record_at is None else tuple(record_at))
    free = [name for name, tensor in parameters.items() if tensor.requires_grad] or list(parameters)
    parameters = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in parameters.items()
    }
    move, sizes = _started(optimizer, {name: parameters[name] for name in free}, members)
    watch = ensemble._Watch(
        ensemble._check_names(names, members), [{"lr": size} for size in sizes], raising=on_divergence == "raise"
    )
    done = torch.zeros(members, dtype=torch.bool, device=parameters[free[0]].device)
    stopped_at, stopping, kept = np.full(members, steps), False, {}

    for step in track(range(steps + 1)):
        if step in wanted:
            watch.look()
            statistics = ensemble._check_statistics(record(parameters), members)
            # To the CPU first: not every device has float64. A copy: a statistic may be the parameter itself.
            copies = {name: value.cpu().double().numpy().copy() for name, value in statistics.items()}
            kept[step] = watch.look_at(step, copies)
            if stop is not None:
                newly = ensemble._check_mask(stop(statistics), done) & ~done
                stopped_at[newly.cpu().numpy()] = step
                done = done | newly
                if done.all():
                    break
                stopping = bool(done.any())
        if step < steps:
            losses, gradients = value_and_grad(parameters, batches(step))
            watch.note(step, losses, done)
            if step == 0:
                ensemble._check_gradients(gradients, parameters, free)
            before = {name: tensor[done] for name, tensor in parameters.items()} if stopping else {}
            move(gradients, schedule(step))
            if project is not None:
                project(parameters)
            for name, rows in before.items():
                parameters[name][done] = rows
    watch.look()
    ensemble._look_at_end(watch, step, parameters)
    records = {name: np.stack([one[name] for one in kept.values()]) for name in next(iter(kept.values()))}
    return History(np.array(list(kept)), records, parameters, stopped_at, watch.diverged)


def _started(optimizer: Any, parameters: Parameters, members: int) -> tuple[Callable[[Parameters, float], None], Any]:
    """Return what moves the parameters, and the step size of each member."""
    if hasattr(optimizer, "start"):
        sizes = per_member("step_size", optimizer.step_size, members)
        return optimizer.start(parameters, torch.from_numpy(sizes.copy()).to(next(iter(parameters.values())))), sizes
    torchs = optimizer(list(parameters.values()))
    full = [group["lr"] for group in torchs.param_groups]

    def move(gradients: Parameters, factor: float) -> None:
        for group, step_size in zip(torchs.param_groups, full, strict=True):
            group["lr"] = step_size * factor
        for name, tensor in parameters.items():
            tensor.grad = gradients[name].contiguous()
        torchs.step()

    return move, np.full(members, float(full[0]))


def _over(rate: Tensor, tensor: Tensor) -> Tensor:
    return rate.view(-1, *[1] * (tensor.ndim - 1))
