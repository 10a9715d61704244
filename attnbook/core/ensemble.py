"""Train many small networks as one batched program.

Every parameter carries a leading *member* axis: ``(members, ...)``. There is one loss per member
and an optimiser that acts on each entry alone, so members never mix: the result is exactly the
training of each network by itself, at a fraction of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnbook.core.runtime import Progress
from attnbook.core.settings import whole
from attnbook.core.update_rules import Rule

__all__ = ["History", "Parameters", "autograd", "log_spaced", "train"]

Parameters: TypeAlias = dict[str, Tensor]
"""Name to stacked tensor ``(members, ...)``."""

Gradient: TypeAlias = Callable[[Parameters, Any], tuple[Tensor, Parameters]]
"""(parameters, batch) to (loss of each member, gradient of each parameter)."""

# Losses are looked at for divergence this often; the message still names the exact step.
CHECK_EVERY = 64


@dataclass(frozen=True)
class History:
    """What a training run leaves behind.

    Attributes:
        steps: Steps at which statistics were recorded, ``(records,)``.
        records: Name to recorded statistic, ``(records, members, ...)``.
        parameters: Final parameters, each ``(members, ...)``.
        stopped_at: Number of steps each member took, ``(members,)``.
        diverged: Whether the loss, a statistic or a parameter of the member became NaN or infinite, ``(members,)``.
    """

    steps: np.ndarray
    records: dict[str, np.ndarray]
    parameters: Parameters
    stopped_at: np.ndarray
    diverged: np.ndarray


def autograd(losses: Callable[[Parameters, Any], Tensor]) -> Gradient:
    """Turn a function that returns one loss per member into one that returns gradients too.

    The sum of the losses is differentiated once; each member's gradient is that of its own loss.

    Args:
        losses: (parameters, batch) to losses ``(members,)``.

    Returns:
        A function for :func:`train`.
    """

    def value_and_grad(parameters: Parameters, batch: Any) -> tuple[Tensor, Parameters]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        with torch.enable_grad():
            loss = losses(leaves, batch)
            gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        return loss.detach(), dict(zip(leaves, gradients, strict=True))

    return value_and_grad


def log_spaced(last: int, count: int, *, also: Sequence[int] = ()) -> tuple[int, ...]:
    """Return step numbers evenly spaced on a log axis, with 0 and the last step among them.

    Args:
        last: Last step, at least 1.
        count: How many to aim for, at least 2; fewer where neighbours would coincide.
        also: Steps to add, each between 0 and ``last``.

    Returns:
        Increasing steps.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> log_spaced(100, 4)
        (0, 1, 10, 100)
    """
    if last < 1 or count < 2:
        raise ValueError(f"last, count: expected at least 1 and 2, got {last} and {count}")
    if any(not 0 <= step <= last for step in also):
        raise ValueError(f"also: expected steps between 0 and {last}, got {tuple(also)}")
    spaced = np.round(np.geomspace(1, last, count - 1)).astype(int).tolist()
    return tuple(sorted({0, *spaced, *also, last}))


@torch.no_grad()
def train(
    value_and_grad: Gradient,
    parameters: Parameters,
    batches: Callable[[int], Any],
    *,
    optimizer: Rule,
    steps: int,
    record: Callable[[Parameters], Mapping[str, Tensor]],
    record_at: Sequence[int] | None = None,
    project: Callable[[Parameters], object] | None = None,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    schedule: Callable[[int], float] | None = None,
    on_divergence: Literal["raise", "record"] = "raise",
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> History:
    """Train all members together and record statistics along the way.

    Args:
        value_and_grad: (parameters, batch) to (loss ``(members,)``, gradients); a closed form, or
            :func:`autograd` of a loss.
        parameters: Initial values, each ``(members, ...)``; they are copied, not changed. Where some require a
            gradient, the others are frozen, as ``torch.func.stack_module_state`` gives them for frozen layers.
        batches: Step number to batch, called with 0, 1, ..., ``steps - 1``.
        optimizer: :class:`~attnbook.core.update_rules.SGD`, :class:`~attnbook.core.update_rules.Adam` or any other
            :class:`~attnbook.core.update_rules.Rule`, with its options for each member.
        steps: Number of steps, at least 1.
        record: Parameters to statistics, each ``(members, ...)``.
        record_at: Steps to record at; default 12 log-spaced ones.
        project: Changes the parameters in place after each step (a constraint); default none.
        stop: Recorded statistics to a mask ``(members,)`` of members that are done: they keep
            their values from then on; training ends when all are done. Default never.
        schedule: Step number to a factor on the step sizes, for example
            :func:`~attnbook.core.update_rules.cosine`; default constant.
        on_divergence: ``raise``, or ``record`` where divergence is a result: statistics that are not finite are
            recorded as infinity, and the history tells which members diverged. Default ``raise``.
        names: What to call the members in messages; default their number.
        progress: Told (steps done, steps in all) about a hundred times.

    Returns:
        The history.

    Raises:
        ValueError: If an argument is outside its range or the shapes do not fit.
        FloatingPointError: If a loss, a statistic or a parameter that is returned is NaN or infinite (unless that is to
            be recorded); names step, member and step size.
    """
    members = _count_members(parameters)
    steps, records_at = _check_schedule(steps, record_at)
    options = optimizer.options(members)
    watch = _Watch(_check_names(names, members), options, raising=on_divergence == "raise")
    free = [name for name, tensor in parameters.items() if tensor.requires_grad] or list(parameters)
    parameters = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in parameters.items()
    }
    update = _Update(optimizer, parameters, free, options, project)
    done = torch.zeros(members, dtype=torch.bool, device=update.device)
    stopped_at = np.full(members, steps)
    stopping = False
    kept_steps: list[int] = []
    kept: list[dict[str, np.ndarray]] = []

    for step in range(steps + 1):
        if progress and (step % max(1, steps // 100) == 0 or step == steps):
            progress(step, steps)
        if step in records_at:
            watch.look()
            statistics = _check_statistics(record(parameters), members)
            kept_steps.append(step)
            # To the CPU first: not every device has float64. A copy: a statistic may be the parameter itself.
            copies = {name: value.cpu().double().numpy().copy() for name, value in statistics.items()}
            kept.append(watch.look_at(step, copies))
            if stop is not None:
                newly = _check_mask(stop(statistics), done) & ~done
                stopped_at[newly.cpu().numpy()] = step
                done = done | newly
                if done.all():
                    break
                stopping = bool(done.any())
        if step < steps:
            losses, gradients = value_and_grad(parameters, batches(step))
            watch.note(step, losses, done)
            if step == 0:
                _check_gradients(gradients, parameters, free)
            update(gradients, done if stopping else None, schedule(step) if schedule else 1.0)
    watch.look()
    _look_at_end(watch, step, parameters)
    records = {name: np.stack([entry[name] for entry in kept]) for name in kept[0]}
    return History(np.array(kept_steps), records, parameters, stopped_at, watch.diverged)


class _Update:
    """One step of the optimiser on the stacked tensors."""

    def __init__(
        self,
        optimizer: Rule,
        parameters: Parameters,
        free: Sequence[str],
        options: list[dict[str, float]],
        project: Callable[[Parameters], object] | None,
    ) -> None:
        self.parameters = parameters
        self.project = project
        self.options = options
        self.device = next(iter(parameters.values())).device
        # Neighbours with equal options share a group: usually one group of whole tensors.
        self.groups: list[tuple[slice, dict[str, Tensor]]] = []
        start = 0
        for _, run in groupby(options):
            part = slice(start, start + len(list(run)))
            self.groups.append((part, {name: parameters[name][part] for name in free}))
            start = part.stop
        self.optimizer = optimizer.build(
            [
                {"params": list(views.values()), "names": list(views), **options[part.start]}
                for part, views in self.groups
            ]
        )

    def __call__(self, gradients: Parameters, frozen: Tensor | None, factor: float) -> None:
        before = {n: t[frozen] for n, t in self.parameters.items()} if frozen is not None else {}
        for group, (part, views) in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["lr"] = self.options[part.start]["lr"] * factor
            # Fused kernels walk through memory: gradients must be laid out as the parameters are.
            for name, view in views.items():
                view.grad = gradients[name][part].contiguous()
        self.optimizer.step()
        if self.project is not None:
            self.project(self.parameters)
        for name, rows in before.items():
            self.parameters[name][frozen] = rows


class _Watch:
    """Keeps the latest losses; raises, or takes note, when one of them is not finite."""

    def __init__(self, names: Sequence[str], options: list[dict[str, float]], *, raising: bool) -> None:
        self.names, self.options, self.raising = names, options, raising
        self.diverged = np.zeros(len(names), dtype=bool)
        self.noted: list[tuple[int, Tensor, Tensor]] = []

    def note(self, step: int, losses: Tensor, done: Tensor) -> None:
        if losses.shape != (len(self.names),):
            raise ValueError(f"value_and_grad: expected one loss per member ({len(self.names)},), got {losses.shape}")
        self.noted.append((step, losses, done))
        if len(self.noted) == CHECK_EVERY:
            self.look()

    def look_at(self, step: int, statistics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Look at recorded statistics too: the last step's damage shows in no later loss."""
        for name, values in statistics.items():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
            if bad.any():
                self.report(bad, f"before step {step}: {name} of {{name}} is not finite")
                statistics[name] = np.where(np.isfinite(values), values, np.inf)
        return statistics

    def look(self) -> None:
        if not self.noted:
            return
        _, losses, done = zip(*self.noted, strict=True)
        bad = (~torch.isfinite(torch.stack(losses)) & ~torch.stack(done)).cpu().numpy()
        if bad.any():
            row, member = np.argwhere(bad)[0]
            step, of_step, _ = self.noted[row]
            what = f"at step {step}: the loss of {{name}} is {float(of_step[member])}"
            self.report(np.asarray(bad.any(axis=0)), what, int(member))
        self.noted.clear()

    def report(self, bad: np.ndarray, what: str, first: int | None = None) -> None:
        self.diverged |= bad
        if self.raising:
            member = int(np.flatnonzero(bad)[0]) if first is None else first
            raise FloatingPointError(
                f"training diverged {what.format(name=self.names[member])} "
                f"with step size {self.options[member]['lr']:g}; try a smaller step size"
            )


def _look_at_end(watch: _Watch, step: int, parameters: Parameters) -> None:
    """The last step's damage may show in no loss and no statistic."""
    for name, tensor in parameters.items():
        bad = ~tensor.isfinite().reshape(len(tensor), -1).all(1)
        if bad.any():
            watch.report(bad.cpu().numpy(), f"before step {step}: {name} of {{name}} is not finite")


def _count_members(parameters: Parameters) -> int:
    sizes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    if not sizes or any(not shape for shape in sizes.values()) or len({shape[0] for shape in sizes.values()}) != 1:
        raise ValueError(f"parameters: all need the same leading member axis, got shapes {sizes}")
    if next(iter(sizes.values()))[0] == 0:
        raise ValueError(f"parameters: expected at least one member, got shapes {sizes}")
    for name, tensor in parameters.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(f"parameters[{name!r}]: expected finite floating point numbers, got {tensor.dtype}")
    return next(iter(sizes.values()))[0]


def _check_names(names: Sequence[str] | None, members: int) -> Sequence[str]:
    if names is not None and len(names) != members:
        raise ValueError(f"names: expected one per member, {members}, got {len(names)}")
    return names or [f"member {i}" for i in range(members)]


def _check_statistics(statistics: Mapping[str, Tensor], members: int) -> Mapping[str, Tensor]:
    for name, value in statistics.items():
        if value.shape[:1] != (members,):
            raise ValueError(
                f"record: {name!r} needs the leading member axis ({members}, ...), got {tuple(value.shape)}"
            )
    return statistics


def _check_mask(mask: Tensor, done: Tensor) -> Tensor:
    if mask.shape != done.shape or mask.dtype != torch.bool:
        raise ValueError(f"stop: expected a mask {tuple(done.shape)} of bool, got {tuple(mask.shape)} of {mask.dtype}")
    return mask


def _check_gradients(gradients: Parameters, parameters: Parameters, free: Sequence[str]) -> None:
    """Refuse gradients of other shapes; those of frozen parameters may be left out."""
    expected = {name: tuple(parameters[name].shape) for name in free}
    got = {name: tuple(tensor.shape) for name, tensor in gradients.items() if name in free or name not in parameters}
    if got != expected:
        raise ValueError(f"value_and_grad: expected gradients of shapes {expected}, got {got}")


def _check_schedule(steps: int, record_at: Sequence[int] | None) -> tuple[int, set[int]]:
    steps = whole("steps", steps)
    wanted = log_spaced(steps, 12) if record_at is None else tuple(record_at)
    if not wanted or any(not 0 <= step <= steps or step % 1 for step in wanted):
        raise ValueError(f"record_at: expected steps between 0 and {steps}, got {wanted}")
    return steps, set(wanted)
