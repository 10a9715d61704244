"""The tokenised mixture: does it matter where training starts, and many heads from zero as one head, held side by side.

The three starts are zero, the first phase with even signs, and small random entries. The last has no equal heads, so
all of them are trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, network, one_head, starts
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Data, MixtureSettings
from attnbook.multi_head.layer import Objective
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.one_head import step_sizes

__all__ = ["STARTS", "Settings", "StartsCompared", "run"]

STARTS = ("zero", "first phase", "random")


@dataclass(frozen=True)
class Settings(MixtureSettings):
    r"""Sizes of the experiment: those of the data, and training.

    Attributes:
        heads: Numbers of heads.
        scale: Standard deviation of the entries of the random start.
        step_size: Step size $\eta$; not tuned.
        steps: Number of steps $K$.
        identity_heads: Heads of the network that is compared with one head, entry by entry.
        identity_steps: Steps of that comparison.
    """

    heads: tuple[int, ...] = (1, 4, 16)
    scale: float = 0.1
    step_size: float = 0.5
    steps: int = 300
    identity_heads: int = 9
    identity_steps: int = 100

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=8, n_first_phase=20, n_test=20, steps=10, identity_steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and steps; the paper has no such experiment."""
        return cls(steps=600, seeds=tuple(range(10)), chunk=1)


@dataclass(frozen=True)
class StartsCompared(Result):
    """What training left behind, and how far the identities are off.

    Attributes:
        train_loss: Training loss after the last step, from each of :data:`STARTS`.
        scaled_output: Largest difference, over all entries, between many heads from zero and one head with its output
            multiplied by the root of their number and a step size divided by it.
        two_steps: The same for one head with two step sizes.
    """

    experiment: ClassVar[str] = "multi_head.starts_compared"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds starts heads"]
    scaled_output: Float[np.ndarray, " seeds"]
    two_steps: Float[np.ndarray, " seeds"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        means = self.train_loss.mean(0)
        largest = float(np.max(np.ptp(means, axis=0) / means.min(0)))
        return {
            "MH-H.5": Measurement({"largest_relative_difference": largest}, n_seeds=len(self.train_loss)),
            "MH-H.5-zero": extremes_over_seeds(largest_parameter_difference=self.scaled_output),
            "MH-H.5-two-steps": extremes_over_seeds(largest_parameter_difference=self.two_steps),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> StartsCompared:
    """Train from three starts, and many heads from zero beside one head.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (numbers of heads done, numbers of heads in all).
        workdir: Folder that keeps finished seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a member diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        data = groups.draw_data(settings, seeds, device=where)
        found = []
        for number, n_heads in enumerate(settings.heads, 1):
            each = (_start(name, settings, data, seeds, n_heads) for name in STARTS)
            found.append([_final_loss(settings, data, *one) for one in each])
            if inner:
                inner(number, len(settings.heads))
        return {"train_loss": np.array(found).transpose(2, 1, 0), **_identities(settings, data)}

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return StartsCompared(settings=settings, provenance=clock.provenance(where), **arrays)


def _start(
    name: str, settings: Settings, data: Data, seeds: tuple[int, ...], n_heads: int
) -> tuple[Parameters, Tensor]:
    """The parameters and how many heads each group has."""
    tokens = data.train.tokens
    if name == "zero":
        return groups.start_of("zero", data, [n_heads] * len(seeds))
    if name == "first phase":
        return groups.start_of("first_phase", data, [n_heads] * len(seeds))
    shape = (n_heads, settings.n_tokens, settings.dimension)
    drawn = [network.draw_parameters(*shape, scale=settings.scale, rng=stream(s, "random start")) for s in seeds]
    stacked = {
        key: to_tensor(np.stack([one[key] for one in drawn]), device=tokens.device, dtype=tokens.dtype)
        for key in drawn[0]
    }
    return stacked, tokens.new_ones((len(seeds), n_heads))


def _final_loss(settings: Settings, data: Data, parameters: Parameters, counts: Tensor) -> np.ndarray:
    history = head_groups.gradient_descent(
        parameters,
        data.train.tokens,
        logistic(data.train.labels),
        counts=counts,
        step_size=settings.step_size,
        steps=settings.steps,
        record=lambda p: groups.train_loss(p, data, counts),
        record_at=(settings.steps,),
    )
    return history.records["train_loss"][-1]


def _identities(settings: Settings, data: Data) -> dict[str, np.ndarray]:
    """Train many heads from zero, all of them, and one head in two ways."""
    heads, steps, eta = settings.identity_heads, settings.identity_steps, settings.step_size
    tokens, labels, _ = data.train
    zero = starts.zero(len(tokens), settings.n_tokens, settings.dimension, device=tokens.device)
    all_zero = {name: tensor.repeat_interleave(heads, dim=1) for name, tensor in zero.items()}
    many = network.gradient_descent(all_zero, (tokens, labels), step_size=eta, steps=steps).parameters
    scaled = _scaled(logistic(labels), math.sqrt(heads))
    even = {"decoder": eta / heads, "key_query": eta / heads}
    alone = one_head.gradient_descent(zero, tokens, scaled, rates=even, steps=steps)
    rates = step_sizes(eta, heads)
    two = one_head.gradient_descent(zero, tokens, logistic(labels), rates=rates, steps=steps)
    return {
        "scaled_output": _difference(many, {n: t.repeat_interleave(heads, dim=1) for n, t in alone.items()}),
        "two_steps": _difference(many, one_head.as_many_heads(two, heads)),
    }


def _scaled(objective: Objective, factor: float) -> Objective:
    """The objective of outputs that are multiplied by a factor first."""

    def of_scaled(outputs: Tensor) -> tuple[Tensor, Tensor]:
        value, slopes = objective(factor * outputs)
        return value, factor * slopes

    return of_scaled


def _difference(one: Parameters, other: Parameters) -> np.ndarray:
    """The largest difference of two entries, for each member."""
    apart = torch.stack([(one[name] - other[name]).flatten(1).abs().amax(1) for name in one])
    return apart.amax(0).cpu().numpy()
