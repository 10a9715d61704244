"""Train many small networks as one batched program.

Every parameter carries a leading *member* axis, ``(members, ...)``. There is one loss per member, and an optimiser that
acts on each entry alone, so members never mix: the result is exactly the training of each network by itself, at a
fraction of the time. Step sizes may differ from member to member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from attnbook.core.settings import whole
from attnbook.lab import track

__all__ = ["SGD", "Adam", "History", "Optimizer", "Parameters", "autograd", "cosine", "log_spaced", "train"]

Parameters: TypeAlias = dict[str, Tensor]
"""Name to stacked tensor ``(members, ...)``."""
Gradient: TypeAlias = Callable[[Parameters, Any], tuple[Tensor, Parameters]]
"""(parameters, batch) to (loss of each member, gradient of each parameter)."""
Sizes: TypeAlias = float | Sequence[float]
"""One number for all members, or one for each."""

CHECK_EVERY = 64  # steps between looks at the losses; the message still names the exact step


class Optimizer(Protocol):
    """An update rule that acts on each entry alone."""

    step_size: Sizes

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        """Return what moves these parameters in place.

        Args:
            parameters: The tensors.
            rate: The step size of each member, ``(members,)``.

        Returns:
            A function of the gradients and a factor on the step sizes.
        """


@dataclass(frozen=True)
class History:
    """What training leaves behind.

    Attributes:
        steps: Steps at which statistics were recorded, ``(records,)``.
        records: Name to recorded statistic, ``(records, members, ...)``; infinite from where a member diverged.
        parameters: Final parameters, each ``(members, ...)``.
        stopped_at: Number of steps each member took, ``(members,)``.
        diverged: Whether the loss or a statistic of the member became NaN or infinite, ``(members,)``.
    """

    steps: np.ndarray
    records: dict[str, np.ndarray]
    parameters: Parameters
    stopped_at: np.ndarray
    diverged: np.ndarray


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with heavy-ball momentum where that is positive.

    Attributes:
        step_size: One positive number, or one per member.
        momentum: In [0, 1); default 0.
    """

    step_size: Sizes
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected at least 0 and less than 1, got {self.momentum!r}")

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
class Adam:
    """Adam (Kingma and Ba, 2015) with bias correction.

    Attributes:
        step_size: One positive number, or one per member.
        betas: Decay of the first and second moment, in [0, 1); default as in the paper by Kingma and Ba.
        eps: Positive, added to the denominator; default as in the paper by Kingma and Ba.
    """

    step_size: Sizes
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: expected two numbers of at least 0 and less than 1, got {self.betas!r}")
        if not 0 < self.eps < float("inf"):
            raise ValueError(f"eps: expected a positive number, got {self.eps!r}")

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        """Return the rule for these parameters.

        Torch's fused kernel knows one step size only. With several it moves zeros by one, and these the parameters.
        """
        tensors, shared = list(parameters.values()), rate[0].item() if (rate == rate[0]).all() else None
        moved = tensors if shared else [torch.zeros_like(tensor) for tensor in tensors]
        first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
        counts = [torch.zeros((), dtype=torch.float32, device=tensor.device) for tensor in tensors]
        options: dict[str, Any] = {"beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps}
        options |= {"fused": True, "weight_decay": 0.0, "amsgrad": False, "maximize": False}

        def move(gradients: Parameters, factor: float) -> None:
            slopes = [gradients[name].contiguous() for name in parameters]  # fused kernels walk through memory
            adam(moved, slopes, first, second, [], counts, lr=factor * (shared or 1.0), **options)
            if shared is None:
                for tensor, by in zip(tensors, moved, strict=True):
                    tensor.addcmul_(by, _over(rate, tensor))
                    by.zero_()

        return move


@dataclass(frozen=True)
class _OfTorch:
    """An optimiser of torch, or of another library in its style; it must act on each entry alone."""

    build: Callable[[list[Tensor]], Any]
    step_size: Sizes = field(default=float("nan"))

    def start(self, parameters: Parameters, rate: Tensor) -> Callable[[Parameters, float], None]:
        optimizer = self.build(list(parameters.values()))
        full = [group["lr"] for group in optimizer.param_groups]

        def move(gradients: Parameters, factor: float) -> None:
            for group, step_size in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = step_size * factor
            for name, tensor in parameters.items():
                tensor.grad = gradients[name].contiguous()
            optimizer.step()

        return move


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


def cosine(steps: int) -> Callable[[int], float]:
    """Return the schedule that lowers the step size from its full value to zero along half a cosine."""
    return lambda step: 0.5 * (1.0 + float(np.cos(np.pi * step / steps)))


def log_spaced(last: int, count: int, *, also: Iterable[int] = ()) -> tuple[int, ...]:
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
    also = tuple(also)
    if last < 1 or count < 2:
        raise ValueError(f"last, count: expected at least 1 and 2, got {last} and {count}")
    if any(not 0 <= step <= last for step in also):
        raise ValueError(f"also: expected steps between 0 and {last}, got {also}")
    return tuple(sorted({0, last, *also, *np.round(np.geomspace(1, last, count - 1)).astype(int).tolist()}))


@torch.no_grad()
def train(
    value_and_grad: Gradient,
    parameters: Parameters,
    batches: Callable[[int], Any] = lambda step: None,
    *,
    optimizer: Optimizer | Callable[[list[Tensor]], Any],
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
        parameters: Initial values, each ``(members, ...)``; they are copied, not changed.
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
        FloatingPointError: If a loss or a statistic becomes NaN or infinite, unless that is to be recorded; names
            member, step and step size.
    """
    members = _members(parameters)
    steps, record_at = _schedule(steps, record_at)
    parameters = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in parameters.items()
    }
    rule: Any = optimizer if hasattr(optimizer, "start") else _OfTorch(optimizer)
    rate = _step_sizes(rule, members).to(next(iter(parameters.values())))
    watch = _Watch(_names(names, members), rate, on_divergence == "raise")
    move, done = rule.start(parameters, rate), torch.zeros(members, dtype=torch.bool, device=rate.device)
    stopped_at, stopping, kept = np.full(members, steps), False, {}

    for step in track(range(steps + 1)):
        if step in record_at:
            watch.look()
            statistics = _statistics(record(parameters), members)
            kept[step] = watch.look_at(step, statistics)
            if stop is not None:
                newly = _mask(stop(statistics), done) & ~done
                stopped_at[newly.cpu().numpy()] = step
                done = done | newly
                if done.all():
                    break
                stopping = bool(done.any())
        if step < steps:
            losses, gradients = value_and_grad(parameters, batches(step))
            watch.note(step, losses, done)
            if step == 0:
                _gradients(gradients, parameters)
            before = {name: tensor[done] for name, tensor in parameters.items()} if stopping else {}
            move(gradients, schedule(step))
            if project is not None:
                project(parameters)
            for name, rows in before.items():
                parameters[name][done] = rows
    watch.look()
    records = {name: np.stack([one[name] for one in kept.values()]) for name in next(iter(kept.values()))}
    return History(np.array(list(kept)), records, parameters, stopped_at, watch.diverged)


class _Watch:
    """Keeps the latest losses; raises, or takes note, where one of them is not finite."""

    def __init__(self, names: Sequence[str], rate: Tensor, raising: bool) -> None:
        self.names, self.rate, self.raising = names, rate, raising
        self.diverged = np.zeros(len(names), dtype=bool)
        self.noted: list[tuple[int, Tensor, Tensor]] = []

    def note(self, step: int, losses: Tensor, done: Tensor) -> None:
        if losses.shape != (len(self.names),):
            raise ValueError(f"value_and_grad: expected one loss per member ({len(self.names)},), got {losses.shape}")
        self.noted.append((step, losses, done))
        if len(self.noted) == CHECK_EVERY:
            self.look()

    def look(self) -> None:
        """Look at the losses since the last look."""
        noted, self.noted = self.noted, []
        if noted and not torch.isfinite(torch.stack([losses for _, losses, _ in noted])).all():
            for step, losses, done in noted:
                bad = (~torch.isfinite(losses) & ~done).cpu().numpy()
                self.report(bad, f"at step {step}: the loss of {{name}} is not finite")

    def look_at(self, step: int, statistics: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Look at recorded statistics too, since the last step's damage shows in no later loss; return copies."""
        # To the CPU first: not every device has float64. A copy: a statistic may be the parameter itself.
        copies = {name: value.cpu().double().numpy().copy() for name, value in statistics.items()}
        for name, values in copies.items():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
            self.report(bad, f"before step {step}: {name} of {{name}} is not finite")
            copies[name] = np.where(np.isfinite(values), values, np.inf)
        return copies

    def report(self, bad: np.ndarray, what: str) -> None:
        self.diverged |= bad
        if bad.any() and self.raising:
            member = int(np.flatnonzero(bad)[0])
            said = "" if torch.isnan(self.rate[member]) else f" with step size {self.rate[member]:g}"
            raise FloatingPointError(
                f"training diverged {what.format(name=self.names[member])}{said}; try a smaller step size"
            )


def _over(rate: Tensor, tensor: Tensor) -> Tensor:
    return rate.view(-1, *[1] * (tensor.ndim - 1))


def _members(parameters: Parameters) -> int:
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    sizes = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"parameters: expected the same leading member axis in all, got shapes {shapes}")
    for name, tensor in parameters.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise ValueError(f"parameters[{name!r}]: expected finite floating point numbers, got {tensor.dtype}")
    return sizes.pop()


def _step_sizes(rule: Any, members: int) -> Tensor:
    if isinstance(rule, _OfTorch):
        return torch.from_numpy(np.full(members, np.nan))  # it has its own
    sizes = np.asarray(rule.step_size, dtype=np.float64)
    if sizes.ndim and sizes.shape != (members,):
        raise ValueError(f"step_size: expected one number or one per member ({members},), got shape {sizes.shape}")
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"step_size: expected positive numbers, got {rule.step_size!r}")
    return torch.from_numpy(np.broadcast_to(sizes, (members,)).copy())


def _schedule(steps: int, record_at: Iterable[int] | None) -> tuple[int, set[int]]:
    number = whole("steps", steps)
    wanted = set(log_spaced(number, 12) if record_at is None else record_at)
    if not wanted or any(not 0 <= step <= number for step in wanted):
        raise ValueError(f"record_at: expected steps between 0 and {number}, got {sorted(wanted)}")
    return number, wanted


def _names(names: Sequence[str] | None, members: int) -> Sequence[str]:
    if names is not None and len(names) != members:
        raise ValueError(f"names: expected one per member, {members}, got {len(names)}")
    return names or [f"member {i}" for i in range(members)]


def _statistics(statistics: Mapping[str, Tensor], members: int) -> Mapping[str, Tensor]:
    for name, value in statistics.items():
        if value.shape[:1] != (members,):
            raise ValueError(
                f"record: expected {name!r} with the member axis ({members}, ...), got {tuple(value.shape)}"
            )
    return statistics


def _mask(mask: Tensor, done: Tensor) -> Tensor:
    if mask.shape != done.shape or mask.dtype != torch.bool:
        raise ValueError(f"stop: expected a mask {tuple(done.shape)} of bool, got {tuple(mask.shape)} of {mask.dtype}")
    return mask


def _gradients(gradients: Parameters, parameters: Parameters) -> None:
    got, expected = ({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (gradients, parameters))
    if got != expected:
        raise ValueError(f"value_and_grad: expected gradients of shapes {expected}, got {got}")
