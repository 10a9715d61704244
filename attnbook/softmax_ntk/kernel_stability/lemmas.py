"""The lemmas behind Lemma 5.1: thirteen inequalities and five pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest, share_of_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk import stability_bounds as bounds
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.perturbations import displacement
from attnbook.softmax_ntk.sweeps import each
from attnbook.softmax_ntk.two_layer import draw_weights

MOVES = ["random", "towards one sample", "each towards its nearest sample"]
RUNGS = [
    "measured", "largest entry times nd", "five pieces, each at its largest", "pieces bounded by Lemma B.1",
    "Lemma 5.1, measured B", "Lemma 5.1, B of the definition",
]  # fmt: skip
# The moves are this much shorter than the ball, so that rounding cannot decide where a bound is attained.
INSIDE = 1 - 1e-9
FAILURE = 0.1  # the probability that the definition of B allows, delta


@dataclass(frozen=True, kw_only=True)
class LemmaB1(Experiment):
    """Lemmas B.1 and B.2: both sides of all inequalities, under random and hostile moves, and where they lose."""

    id = "softmax_ntk.lemma_b1"
    summary = "Lemmas B.1 and B.2: both sides of their inequalities, and the constant that the first one needs"
    needs = "cpu"
    budget_seconds = 20
    smoke = {"n_samples": 5, "n_inputs": 7, "width": 32, "widths": (32, 64), "draws": 2, "seeds": (0, 1)}
    full = {"n_samples": 256, "width": 8192, "widths": (1024, 8192, 65536), "seeds": tuple(range(100))}

    n_samples: int = 32
    n_inputs: int = 16
    n_outputs: int = 2
    width: int = 1024
    smallest_radius: float = 1e-4  # radii lie between this and the lemma's 0.01, evenly on a logarithmic axis
    widths: tuple[int, ...] = (256, 1024, 16384, 65536)  # where the largest logit is looked at, the width among them
    draws: int = 4  # networks of each width and seed for it
    seeds: tuple[int, ...] = tuple(range(30))  # a trial each
    chunk: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.smallest_radius < 0.01:
            raise ValueError(f"smallest_radius: expected a number between 0 and 0.01, got {self.smallest_radius}")
        if self.width not in self.widths or self.draws < 1:
            raise ValueError(f"widths, draws: expected {self.width} among the widths and at least one draw")

    def coordinates(self) -> dict[str, Any]:
        """Name widths, moves, parts and rungs of the ladder."""
        return {"width": list(self.widths), "move": MOVES, "part": list(range(1, 14)), "rung": RUNGS}

    @property
    def defined(self) -> float:
        """B by the paper's definition, with a constant of 2."""
        return bounds.exponent_of_definition(self.n_samples, self.n_outputs, failure=FAILURE)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Try all inequalities, in NumPy on the CPU."""
        return each(seeds, "seed", self._trial, progress)

    def _trial(self, seed: int) -> Arrays:
        n, d, rng = self.n_inputs, self.n_outputs, stream(seed, "trial", self.width)
        inputs = draw_sample(self.n_samples, n, d, seed=seed).inputs
        drawn = draw_weights(self.width, n, d, rng=stream(seed, "weights", self.width))
        weights, signs = drawn.first_layer, drawn.signs
        radius = float(np.exp(rng.uniform(np.log(self.smallest_radius), np.log(0.01))))
        nearest = inputs[np.abs(inputs @ weights).argmax(axis=0)].T
        moves = (
            displacement("random", weights, radius * INSIDE, rng=rng),
            radius * INSIDE * np.broadcast_to(inputs[:1].T, weights.shape),
            radius * INSIDE * nearest * np.sign((nearest * weights).sum(axis=0)),
        )
        b, defined = max(float(np.abs(inputs @ weights).max()), 1.0), self.defined
        right = bounds.lemma_b1_bounds(exponent=b, radius=radius, width=self.width)
        right[0] = defined  # part 1 is about the definition's B, not the measured one
        left = [bounds.lemma_b1_left_sides(inputs, weights, weights + move) for move in moves]
        pieces = [bounds.five_pieces(inputs, signs, weights, weights + move) for move in moves]
        rows, sizes = signs.shape[0] * self.n_samples, {"n_samples": self.n_samples, "n_outputs": d}
        proved = [
            rows * bounds.bound_by_pieces(radius, exponent=b),
            *(bounds.kernel_change_bound(radius, exponent=e, **sizes) for e in (b, defined)),
        ]
        ladder = [
            [np.linalg.norm(p.sum(0)), rows * abs(p.sum(0)).max(), rows * abs(p).max((1, 2)).sum(), *proved]
            for p in pieces
        ]
        # Of networks at their start; one neuron of each pair.
        starts = [[stream(seed, "part 1", m, draw) for draw in range(self.draws)] for m in self.widths]
        logits = [
            [abs(inputs @ rng.standard_normal((n, m // 2))).max() for rng in row]
            for m, row in zip(self.widths, starts, strict=True)
        ]
        return {
            "ratio": (("move", "part"), np.stack(left) / right),
            "ladder": (("move", "rung"), np.array(ladder) / radius),
            "exponent": ((), b),
            "radius": ((), radius),
            "largest_logit": (("width", "draw"), logits),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how often part 1 fails, the constant it needs, and how loose the rest is."""
        beyond = xr.DataArray((data.largest_logit.sel(width=self.width) > self.defined).values.ravel(), dims="seed")
        # The smallest constant in the definition of B that fails in at most the share allowed.
        needed = (data.largest_logit * bounds.CONSTANT / self.defined).quantile(1 - FAILURE, ["seed", "draw"])
        largest = data.ratio.max("move")
        entry = data.ladder.sel(rung=RUNGS[1])
        return {
            "SN-B1-1": {
                "share_beyond": beyond.mean(),
                "upper_end_of_share": share_of_seeds(beyond, 1),
                "needed_constant": needed.sel(width=self.width),
                "needed_constant_widest": needed.isel(width=-1),
                "parts_2_to_7": lowest(largest.sel(part=slice(2, 7))),
                "parts_8_to_13": highest(largest.sel(part=slice(8, 13))),
            },
            "SN-B2": {
                "bound_over_largest_entry": lowest(data.ladder.sel(rung=RUNGS[4]) / entry),
                "lost_in_adding_sizes": highest(data.ladder.sel(rung=RUNGS[2], move=[MOVES[0], MOVES[2]]) / entry),
                "lost_in_lemma_b1": lowest(data.ladder.sel(rung=RUNGS[3]) / data.ladder.sel(rung=RUNGS[2])),
            },
        }  # fmt: skip
