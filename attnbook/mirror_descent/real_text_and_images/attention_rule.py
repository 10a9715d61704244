"""An update rule for whole networks: mirror descent (or Adam) on some matrices, Adam on everything else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnbook.core.update_rules import Adam, Stepper, per_member
from attnbook.mirror_descent.optimizer import MirrorDescent

ADAM = 0.0
MOMENTUM, OTHER_STEP_SIZE = 0.9, 1e-3  # of mirror descent; of Adam on all other parameters


@dataclass(frozen=True)
class AttentionRule:
    """The rule with which :func:`attnbook.core.ensemble.train` compares optimisers of the attention matrices only."""

    matrices: Collection[str]  # names of the parameters to which the next two belong
    step_size: Sequence[float]  # one per member
    p: Sequence[float | None]  # exponent of the mirror map, one per member; None for Adam

    def options(self, members: int) -> list[dict[str, float]]:
        """Return step size and exponent of each member; exponent 0 stands for Adam."""
        sizes = per_member("step_size", list(self.step_size), members)
        exponents = [ADAM if p is None else float(p) for p in self.p]
        return [{"lr": float(size), "p": p} for size, p in zip(sizes, exponents, strict=True)]

    def build(self, groups: list[dict[str, Any]]) -> Stepper:
        """Return the optimiser for these parameter groups, whose ``names`` tell which matrices are meant."""
        return _Together(groups, self)


class _Together:
    """Several optimisers with one set of groups, whose step sizes are those of the matrices."""

    def __init__(self, groups: list[dict[str, Any]], rule: AttentionRule) -> None:
        self.param_groups = groups
        others: list[torch.Tensor] = []
        kinds: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for group in self.param_groups:
            named = list(zip(group["names"], group["params"], strict=True))
            others += [tensor for name, tensor in named if name not in rule.matrices]
            matrices = {"params": [tensor for name, tensor in named if name in rule.matrices], "lr": group["lr"]}
            by_adam = group["p"] == ADAM
            kinds[by_adam].append(matrices | {"leader": group} | ({} if by_adam else {"p": group["p"]}))
        self.parts: list[Stepper] = []
        if kinds[True]:
            self.parts.append(Adam(OTHER_STEP_SIZE).build(kinds[True]))
        if kinds[False]:
            self.parts.append(MirrorDescent(kinds[False], 0.0, momentum=MOMENTUM, stacked=True))
        self.rest = [Adam(OTHER_STEP_SIZE).build([{"params": others, "lr": OTHER_STEP_SIZE}])] if others else []

    def step(self) -> None:
        """Take one step with all parts."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["leader"]["lr"]
        for part in (*self.parts, *self.rest):
            part.step()
