"""Four optimisers of the attention matrices, each at several step sizes: the arms of a comparison on real data.

Adam, and mirror descent with p = 1.1, 2 and 3, train the query, key, value and output matrices. Everything else in the
network is trained by Adam at one step size, the same in all arms; so only the attention matrices differ. Runs with
equal seeds share start and batches, so that differences between arms are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble
from attnbook.core.ensemble import Parameters
from attnbook.core.results import Result
from attnbook.core.resuming import check_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.attention_rule import AttentionRule
from attnbook.mirror_descent.models.transformer import (
    ATTENTION,
    Inputs,
    Shape,
    attention_names,
    clipped_gradient,
    draw_parameters,
    forward,
)

__all__ = ["MATCHED", "OPTIMIZERS", "ArmResult", "ArmSettings", "by_arm", "looked_at", "sparsity", "train_arms"]

OPTIMIZERS: Mapping[str, float | None] = {"adam": None, "p1_1": 1.1, "p2": 2.0, "p3": 3.0}
"""Name to exponent of the potential; None for Adam."""

MATCHED = {"p1_1": 1.0, "p2": 1.0, "p3": 0.1}
"""Step sizes in these proportions make comparable progress; a trial of an earlier implementation found them."""

SMALL = 0.01
EVALUATED = 250


@dataclass(frozen=True)
class ArmSettings:
    """Step sizes, length and seeds of a comparison.

    Attributes:
        adam: Step sizes of Adam, increasing.
        p1_1: Step sizes of mirror descent with p = 1.1, likewise.
        p2: Step sizes of mirror descent with p = 2, gradient descent, likewise.
        p3: Step sizes of mirror descent with p = 3, likewise.
        steps: Steps.
        batch_size: Samples per step.
        seeds: Seeds of starts and batches.
        chunk: Seeds trained together.
    """

    adam: tuple[float, ...]
    p1_1: tuple[float, ...]
    p2: tuple[float, ...]
    p3: tuple[float, ...]
    steps: int
    batch_size: int
    seeds: tuple[int, ...]
    chunk: int

    def __post_init__(self) -> None:
        for name in OPTIMIZERS:
            rates = getattr(self, name)
            if not rates or list(rates) != sorted(set(rates)) or rates[0] <= 0:
                raise ValueError(f"{name}: expected increasing positive step sizes, got {rates}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {self.batch_size}")
        check_seeds(self.seeds, self.chunk)

    def arms(self) -> tuple[tuple[str, float], ...]:
        """Return optimiser and step size of each arm."""
        return tuple((name, rate) for name in OPTIMIZERS for rate in getattr(self, name))

    def matched(self) -> tuple[tuple[int, int, int], ...]:
        """Return the arms with p = 1.1, 2 and 3 whose step sizes are in the proportions of :data:`MATCHED`."""
        found = []
        for rate in self.p2:
            wanted = [(name, rate * factor) for name, factor in MATCHED.items()]
            places = [[k for k, arm in enumerate(self.arms()) if _same(arm, one)] for one in wanted]
            if all(places):
                found.append((places[0][0], places[1][0], places[2][0]))
        return tuple(found)


@dataclass(frozen=True)
class ArmResult(Result):
    """What was measured in every arm.

    Attributes:
        test_accuracy: On the test samples, ``(seeds, arms)``.
        validation_accuracy: On samples that are neither trained nor tested on, likewise.
        train_accuracy: On training samples, likewise.
        effective_dimension: Of all query, key, value and output matrices, and of all of them together, each matrix
            divided by its largest entry, ``(seeds, arms, 5)``.
        small_share: Share of entries below one per cent of the largest of their matrix, likewise.
        entropy: Mean entropy of the attention of the class token in the last layer over that of uniform attention,
            ``(seeds, arms)``.
    """

    test_accuracy: Float[np.ndarray, "seeds arms"]
    validation_accuracy: Float[np.ndarray, "seeds arms"]
    train_accuracy: Float[np.ndarray, "seeds arms"]
    effective_dimension: Float[np.ndarray, "seeds arms matrices"]
    small_share: Float[np.ndarray, "seeds arms matrices"]
    entropy: Float[np.ndarray, "seeds arms"]

    def of(self, optimizer: str) -> list[int]:
        """Return the arms of an optimiser.

        Args:
            optimizer: One of :data:`OPTIMIZERS`.

        Returns:
            Their numbers, by increasing step size.
        """
        return [k for k, (name, _) in enumerate(self.settings.arms()) if name == optimizer]

    def best(self, optimizer: str) -> int:
        """Return the arm of an optimiser with the highest validation accuracy, in the mean over all seeds.

        Args:
            optimizer: One of :data:`OPTIMIZERS`.

        Returns:
            Its number.
        """
        arms = self.of(optimizer)
        return arms[int(self.validation_accuracy[:, arms].mean(axis=0).argmax())]

    def tuned(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return values of each optimiser at its best step size.

        Args:
            values: ``(seeds, arms)`` or ``(seeds, arms, ...)``.

        Returns:
            Optimiser to ``(seeds, ...)``.
        """
        return {name: values[:, self.best(name)] for name in OPTIMIZERS}

    def ordered(self) -> Float[np.ndarray, "seeds pairs"]:
        """Return whether the effective dimension rises strictly from p = 1.1 to 3, at each matched step size."""
        together = self.effective_dimension[..., -1]
        rises = [(np.diff(together[:, list(arms)], axis=1) > 0).all(axis=1) for arms in self.settings.matched()]
        return np.stack(rises, axis=1).astype(float)


def train_arms(
    settings: ArmSettings,
    shape: Shape,
    seeds: Sequence[int],
    batches: Callable[[int], Inputs],
    *,
    device: torch.device,
    progress: Progress | None = None,
) -> Parameters:
    """Train all arms of some seeds as one program.

    Args:
        settings: Step sizes and number of steps.
        shape: Sizes of the network.
        seeds: Seeds of the starts.
        batches: Step to a batch, one group per seed.
        device: Where to train.
        progress: Told (steps done, steps in all).

    Returns:
        Parameters ``(arms * seeds, ...)``; seeds vary fastest.

    Raises:
        FloatingPointError: If a network diverges.
    """
    arms = settings.arms()
    members = [arm for arm in arms for _ in seeds]
    rule = AttentionRule(attention_names(shape), [r for _, r in members], [OPTIMIZERS[name] for name, _ in members])
    return ensemble.train(
        clipped_gradient(shape),
        draw_parameters(shape, seeds, len(arms), device=str(device)),
        batches,
        optimizer=rule,
        steps=settings.steps,
        record=lambda parameters: {"head_bias": parameters["head_bias"]},
        record_at=(settings.steps,),
        names=[f"{name} with seed {seed}" for name, _ in arms for seed in seeds],
        progress=progress,
    ).parameters


@torch.no_grad()
def looked_at(
    parameters: Parameters,
    shape: Shape,
    inputs: Inputs,
    see: Callable[[Tensor, slice], Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Run trained networks on many samples, a part at a time.

    Args:
        parameters: As from :func:`train_arms`.
        shape: Sizes of the network.
        inputs: The samples of each group.
        see: Attention ``(members, part, heads, tokens + 1)`` and the place of the part to a number or numbers of each
            sample ``(members, part, ...)``, of which the mean is wanted; default none.

    Returns:
        ``accuracy`` and ``entropy`` of each member, ``(members,)``, and ``seen`` where asked for.
    """
    found: dict[str, list[Tensor]] = {"accuracy": [], "entropy": [], "seen": []}
    count = inputs.tokens.shape[1]
    for start in range(0, count, EVALUATED):
        part = slice(start, start + EVALUATED)
        tokens, labels = inputs.tokens[:, part], inputs.labels[:, part]
        logits, attention = forward(parameters, shape, Inputs(tokens, labels))
        right = logits.argmax(-1) == labels.repeat(len(logits) // len(labels), 1)
        found["accuracy"].append(right.double().sum(1))
        entropy = torch.special.entr(attention.double()).sum(-1) / np.log(attention.shape[-1])
        found["entropy"].append(entropy.mean(-1).sum(1))
        if see is not None:
            found["seen"].append(see(attention.double(), part).sum(1))
    return {name: (sum(parts) / count).cpu().numpy() for name, parts in found.items() if parts}


def by_arm(arrays: Mapping[str, np.ndarray], n_arms: int) -> dict[str, np.ndarray]:
    """Turn arrays of all members into arrays of seeds and arms.

    Args:
        arrays: Name to values ``(arms * seeds, ...)``; seeds vary fastest.
        n_arms: Number of arms.

    Returns:
        Name to values ``(seeds, arms, ...)``.
    """
    return {name: a.reshape(n_arms, -1, *a.shape[1:]).swapaxes(0, 1) for name, a in arrays.items()}


def sparsity(parameters: Mapping[str, Tensor], n_layers: int) -> dict[str, np.ndarray]:
    """Return how evenly the entries of the attention matrices are spread, each matrix over its own largest entry.

    Args:
        parameters: As from :func:`train_arms`.
        n_layers: Layers of the network.

    Returns:
        ``effective_dimension`` and ``small_share``, ``(members, 5)``: of all query, key, value and output matrices, and
        of all of them together.
    """
    kinds = []
    for kind in ATTENTION:
        layers = [parameters[f"{kind}{layer}"].detach().double().abs().flatten(1).cpu() for layer in range(n_layers)]
        kinds.append(torch.cat([sizes / sizes.amax(1, keepdim=True) for sizes in layers], dim=1).numpy())
    groups = [*kinds, np.concatenate(kinds, axis=1)]
    dimension = [sizes.sum(1) ** 2 / (sizes.shape[1] * np.square(sizes).sum(1)) for sizes in groups]
    small = [(sizes < SMALL).mean(axis=1) for sizes in groups]
    return {"effective_dimension": np.stack(dimension, axis=1), "small_share": np.stack(small, axis=1)}


def _same(arm: tuple[str, float], other: tuple[str, float]) -> bool:
    return arm[0] == other[0] and bool(np.isclose(arm[1], other[1], rtol=1e-6, atol=0.0))
