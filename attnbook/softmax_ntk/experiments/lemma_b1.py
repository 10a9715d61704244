"""Lemma B.1: the thirteen elementary inequalities behind Lemma 5.1, over random trials and hostile moves.

The paper has no experiments; this one is the book's. A trial draws a network, samples and a radius, and moves the
neurons at random, all towards one sample, or each towards the sample nearest to it: the last two are the worst that
single inequalities allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.runs import over_runs, place
from attnbook.softmax_ntk.perturbations import displacement
from attnbook.softmax_ntk.stability_bounds import exponent_of_definition, lemma_b1_bounds
from attnbook.softmax_ntk.two_layer import draw_weights

__all__ = ["MOVES", "PARTS", "LemmaB1", "Settings", "left_sides", "run"]

PARTS = 13
TIGHT = 7
"""Parts 1 to 7 are about single neurons, parts 8 to 13 about the softmax."""
MOVES = ("random", "towards one sample", "each towards its nearest sample")
# The moves are this much shorter than the ball, so that rounding cannot decide where a bound is attained.
INSIDE = 1 - 1e-9


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs; enters the definition of $B$ only.
        width: Number of neurons.
        smallest_radius: Radii are drawn between this and the lemma's 0.01, evenly on a logarithmic axis.
        seeds: One trial each.
        chunk: Trials kept together.
    """

    n_samples: int = 32
    n_inputs: int = 16
    n_outputs: int = 2
    width: int = 1024
    smallest_radius: float = 1e-4
    seeds: tuple[int, ...] = tuple(range(30))
    chunk: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.smallest_radius < 0.01:
            raise ValueError(f"smallest_radius: expected a number between 0 and 0.01, got {self.smallest_radius}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=5, n_inputs=7, width=32, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=256, width=8192, seeds=tuple(range(100)))


@dataclass(frozen=True)
class LemmaB1(Result):
    r"""Left sides over bounds.

    Attributes:
        ratio: For each part of the lemma, the largest over neurons and samples, ``(trials, moves, parts)``.
        exponent: The measured $B$ of each trial.
        radius: The radius of each trial.
    """

    experiment: ClassVar[str] = "softmax_ntk.lemma_b1"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    ratio: Float[np.ndarray, "trials moves parts"]
    exponent: Float[np.ndarray, " trials"]
    radius: Float[np.ndarray, " trials"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the largest ratio of each part, by claim id."""
        found = {
            f"SN-B1-{part + 1}": extremes_over_seeds(max_ratio_to_bound=self.ratio[..., part]) for part in range(PARTS)
        }
        beyond = (self.ratio[:, :, 0] > 1).any(axis=1).astype(float)
        found["SN-B1-1-share"] = over_runs(len(beyond), np.mean, share_of_trials_beyond=beyond)
        each = self.ratio.max(axis=1)
        largest = each.max(axis=0)
        tight, loose = each[:, :TIGHT].min(axis=1), each[:, TIGHT:].max(axis=1)
        found["SN-B1-tight"] = Measurement(
            {
                "min_ratio_parts_1_to_7": float(largest[:TIGHT].min()),
                "max_ratio_parts_8_to_13": float(largest[TIGHT:].max()),
            },
            {
                "min_ratio_parts_1_to_7": (float(tight.min()), float(tight.max())),
                "max_ratio_parts_8_to_13": (float(loose.min()), float(loose.max())),
            },
            len(each),
        )
        return found


def left_sides(
    inputs: Float[np.ndarray, "samples inputs"],
    weights: Float[np.ndarray, "inputs width"],
    moved: Float[np.ndarray, "inputs width"],
) -> Float[np.ndarray, " parts"]:
    r"""Return the left sides of Lemma B.1, each the largest over neurons, samples and pairs of samples.

    Args:
        inputs: Samples $x_i$, one per row.
        weights: $W$, one column per neuron.
        moved: $\tilde W$.

    Returns:
        Thirteen numbers; the last is the sum over neurons of the changes of the softmax, the worst over all $z$.
    """
    before, after = inputs @ weights, inputs @ moved
    change = inputs @ (weights - moved)
    high, low = 2 * change.max(), 2 * change.min()  # of <w - w~, x_i + x_j>: attained where i = j
    exp_before, exp_after = np.exp(before), np.exp(after)
    total_before, total_after = exp_before.sum(axis=1), exp_after.sum(axis=1)
    soft_before, soft_after = exp_before / total_before[:, None], exp_after / total_after[:, None]
    moved_by = np.abs(soft_before - soft_after)
    return np.array([
        np.abs(before).max(), np.abs(after).max(), max(high, -low),
        exp_before.max(), exp_after.max(), max(np.expm1(high), -np.expm1(low)),
        np.abs(exp_before - exp_after).max(),
        np.abs(total_before - total_after).max(), np.abs(1 / total_before - 1 / total_after).max(),
        soft_before.max(), soft_after.max(), moved_by.max(), moved_by.sum(axis=1).max(),
    ])  # fmt: skip


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LemmaB1:
    """Compare both sides of the thirteen inequalities in every trial.

    Args:
        settings: Sizes and seeds.
        device: Checked and named in the provenance; the inequalities are computed in NumPy.
        progress: Told (trials done, trials in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    place(device)
    arrays = seed_by_seed(
        settings, lambda seed: _trial(settings, seed), clock=clock, workdir=workdir, progress=progress
    )
    return LemmaB1(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _trial(s: Settings, seed: int) -> dict[str, np.ndarray]:
    rng = stream(seed, "trial", s.width)
    inputs = draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed).inputs
    weights = draw_weights(s.width, s.n_inputs, s.n_outputs, rng=stream(seed, "weights", s.width)).first_layer
    radius = float(np.exp(rng.uniform(np.log(s.smallest_radius), np.log(0.01))))
    nearest = inputs[np.abs(inputs @ weights).argmax(axis=0)].T
    sides = np.sign((nearest * weights).sum(axis=0))
    moves = (
        displacement("random", weights, radius * INSIDE, rng=rng),
        radius * INSIDE * np.broadcast_to(inputs[:1].T, weights.shape),
        radius * INSIDE * nearest * sides,
    )
    exponent = max(float(np.abs(inputs @ weights).max()), 1.0)
    bounds = lemma_b1_bounds(exponent=exponent, radius=radius, width=s.width)
    bounds[0] = exponent_of_definition(s.n_samples, s.n_outputs)  # part 1 is the definition's B, not the measured one
    ratio = np.stack([left_sides(inputs, weights, weights + move) / bounds for move in moves])
    return {"ratio": ratio, "exponent": np.array(exponent), "radius": np.array(radius)}
