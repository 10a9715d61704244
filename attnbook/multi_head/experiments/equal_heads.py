"""Equal heads stay equal: groups against the whole network, and how many distinct heads each start leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import head_groups, network, starts
from attnbook.multi_head.experiments import samples, wide
from attnbook.multi_head.objectives import logistic

__all__ = ["STARTS", "EqualHeads", "Settings", "run"]

STARTS = ("zero", "signs", "uniform")
# Heads nearer to each other than this, relative to their norm, count as one.
NEAR = 1e-9


@dataclass(frozen=True)
class Settings(wide.Sizes):
    """Sizes, and how to train.

    Attributes:
        heads: Numbers of heads that are trained as groups and as a whole.
        steps: Steps of gradient descent.
        few: Number of heads whose distinct ones are counted.
        step_size: Step size of gradient descent.
    """

    heads: tuple[float, ...] = (4, 16)
    steps: int = 100
    few: int = 6
    step_size: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.few < 2:
            raise ValueError(f"few: expected at least 2 heads, got {self.few}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a longer run with more heads."""
        return cls(heads=(4, 16, 64, 256), steps=1000)


@dataclass(frozen=True)
class EqualHeads(Result):
    """What the collapse of equal heads rests on.

    Attributes:
        difference: Largest difference of a parameter between the groups and the whole network, after training.
        distinct: Distinct heads after training, by the starts of :data:`STARTS`.
    """

    experiment: ClassVar[str] = "multi_head.equal_heads"
    settings_type: ClassVar[type] = Settings

    difference: Float[np.ndarray, "seeds heads"]
    distinct: Float[np.ndarray, "seeds starts"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for equal heads, by claim id."""
        return {
            "MH-COLLAPSE": extremes_over_seeds(largest_parameter_difference=self.difference),
            "MH-COLLAPSE-groups": over_seeds(
                **{f"distinct_heads_{name}": self.distinct[:, i] for i, name in enumerate(STARTS)}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> EqualHeads:
    """Train whole networks and groups of their heads side by side.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (trainings done, trainings in all).
        workdir: Unused: the run takes seconds.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where, jobs = Clock(), samples.double_device(device), len(settings.heads) + len(STARTS)
    columns = []
    with threads(1):
        batch = samples.draw(settings.mixture, settings.n_samples, settings.seeds, device=where)
        first = samples.draw(
            settings.mixture, settings.first_phase_samples, settings.seeds, purpose="first phase", device=where
        )
        for number in range(jobs):
            if number < len(settings.heads):
                columns.append(_difference(settings, batch, first, int(settings.heads[number])))
            else:
                columns.append(_distinct(settings, batch, first, STARTS[number - len(settings.heads)]))
            if progress:
                progress(number + 1, jobs)
    table = np.stack(columns, axis=1)
    difference, distinct = table[:, : len(settings.heads)], table[:, len(settings.heads) :]
    return EqualHeads(settings=settings, provenance=clock.provenance(where), difference=difference, distinct=distinct)


def _difference(settings: Settings, batch: samples.Drawn, first: samples.Drawn, n_heads: int) -> np.ndarray:
    """Largest difference between groups and whole network for each seed."""
    start = starts.first_phase(first.tokens, first.labels)
    counts = to_tensor(starts.even_sign_counts(n_heads), device=batch.tokens.device, dtype=torch.float64)
    counts = counts.repeat(len(batch.tokens), 1)
    groups = head_groups.gradient_descent(
        start,
        batch.tokens,
        logistic(batch.labels),
        counts=counts,
        step_size=settings.step_size,
        steps=settings.steps,
        record=lambda parameters: {"norm": head_groups.norm(parameters, counts=counts)},
    )
    whole = _train(head_groups.expand(start, counts=counts), batch, settings)
    apart = [
        (tensor - whole[name]).abs().amax((1, 2, 3))
        for name, tensor in head_groups.expand(groups.parameters, counts=counts).items()
    ]
    return torch.stack(apart).amax(0).cpu().numpy()


def _distinct(settings: Settings, batch: samples.Drawn, first: samples.Drawn, kind: str) -> np.ndarray:
    """Distinct heads for each seed after training a whole network."""
    sizes = (settings.few, settings.n_tokens, settings.dimension)
    coefficients = torch.stack([_coefficients(seed, settings.few, kind) for seed in settings.seeds])
    one = starts.first_phase(first.tokens, first.labels, coefficients=torch.ones(1))
    start = {
        name: tensor.expand(-1, sizes[0], -1, -1) * coefficients.to(tensor)[:, :, None, None]
        for name, tensor in one.items()
    }
    trained = _train(start, batch, settings)
    heads = torch.cat([tensor.flatten(2) for tensor in trained.values()], dim=2)
    near = NEAR * heads.norm(dim=2).amax(1)[:, None, None]
    same = torch.cdist(heads, heads, compute_mode="donot_use_mm_for_euclid_dist") <= near
    # A head is counted unless an earlier one equals it.
    return (~torch.tril(same, -1).any(2)).sum(1).cpu().numpy().astype(np.float64)


def _coefficients(seed: int, few: int, kind: str) -> Tensor:
    rng = stream(seed, "coefficients", kind)
    if kind == "zero":
        return torch.zeros(few, dtype=torch.float64)
    if kind == "uniform":
        return torch.tensor(rng.uniform(-1, 1, few))
    signs = rng.choice([-1.0, 1.0], few)
    while abs(signs.sum()) == few:  # one sign only: draw again
        signs = rng.choice([-1.0, 1.0], few)
    return torch.tensor(signs)


def _train(start: Parameters, batch: samples.Drawn, settings: Settings) -> Parameters:
    pair = (batch.tokens, batch.labels)
    return network.gradient_descent(start, pair, step_size=settings.step_size, steps=settings.steps).parameters
