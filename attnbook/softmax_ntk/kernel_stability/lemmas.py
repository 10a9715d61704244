"""The lemmas around Lemma 5.1: the thirteen inequalities and five pieces behind it, and bounds on the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk import stability_bounds as bounds
from attnbook.softmax_ntk.at_start import starting_networks
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.lazy_bounds import step_size_of_theorem
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import displacement
from attnbook.softmax_ntk.two_layer import draw_weights, loss_and_gradient, neuron_derivatives, predict

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
    budget_seconds = 20
    smoke = {"n_samples": 5, "n_inputs": 7, "width": 32, "widths": (32, 64), "draws": 2, "seeds": (0, 1)}
    large = {"n_samples": 256, "width": 8192, "widths": (1024, 8192, 65536), "seeds": tuple(range(100))}

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
        with runtime.threads(1):
            found = [self._trial(seed) for seed in seeds]
        return {k: (("seed", *dims), np.stack([one[k][1] for one in found])) for k, (dims, _) in found[0].items()}

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
        from scipy.stats import beta

        beyond = data.largest_logit.sel(width=self.width) > self.defined
        failures, others = int(beyond.sum()), int((~beyond).sum())
        # The smallest constant in the definition of B that fails in at most the share allowed.
        needed = (data.largest_logit * bounds.CONSTANT / self.defined).quantile(1 - FAILURE, ["seed", "draw"])
        largest = data.ratio.max("move")
        entry = data.ladder.sel(rung=RUNGS[1])
        return {
            "SN-B1-1": {
                "share_beyond": beyond.mean(),
                "upper_end_of_share": xr.DataArray(float(beta.ppf(0.95, failures + 1, others))),
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


@dataclass(frozen=True, kw_only=True)
class GradientBounds(Experiment):
    """Lemmas D.1 to D.3: gradients in training, single steps, and the residual at the start."""

    id = "softmax_ntk.gradient_bounds"
    summary = "Lemmas D.1 to D.3: bounds on gradients, steps and the first residual, against the width"
    budget_seconds = 20
    smoke = {"n_samples": 5, "n_inputs": 7, "widths": (8, 16), "steps": 3, "seeds": (0, 1)}
    large = {"n_samples": 128, "n_inputs": 128, "n_outputs": 4, "widths": (1024, 4096, 16384), "chunk": 1}

    n_samples: int = 16
    n_inputs: int = 16
    n_outputs: int = 2
    widths: tuple[int, ...] = (64, 256, 1024, 4096)  # even
    steps: int = 40  # at half of the largest stable step size
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def coordinates(self) -> dict[str, Any]:
        """Name the widths."""
        return {"width": list(self.widths)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train paired networks of each width, and draw others without pairs."""
        with runtime.threads(1):
            found = [self._train(width, seeds, device) for width in self.widths]
        return {
            name: (("width", *dims), np.stack([one[name][1] for one in found])) for name, (dims, _) in found[0].items()
        }

    def _train(self, width: int, seeds: tuple[int, ...], device: torch.device) -> Arrays:
        sizes: dict[str, Any] = {
            "n_samples": self.n_samples, "n_inputs": self.n_inputs, "n_outputs": self.n_outputs,
        }  # fmt: skip
        networks, x = starting_networks("softmax", seeds, width=width, device=device, **sizes)
        free = starting_networks("softmax", seeds, width=width, device=device, start="independent", **sizes)[0]
        labels = np.stack([draw_sample(*sizes.values(), seed=seed).labels for seed in seeds])
        y = to_tensor(labels, device=x.device, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(ntk_gram(networks, x))
        logits, eta = torch.bmm(x, networks.first_layer), 1 / (width * eigenvalues[:, -1])
        gradients, residuals, heaviest = [], [], []
        for _ in range(self.steps):
            residuals.append((predict(networks, x) - y).norm(dim=(1, 2)))
            gradients.append(loss_and_gradient(networks, x, y)[1].norm(dim=1).amax(1))
            heaviest.append(neuron_derivatives(networks, x).amax((1, 2)))
            networks = gradient_descent(networks, x, y, eta, max_steps=1).networks
        along, once = ("step", "seed"), ("seed",)
        return {
            "gradient": (along, torch.stack(gradients).cpu()),  # of the neuron with the largest
            "residual": (along, torch.stack(residuals).cpu()),
            "heaviest": (along, torch.stack(heaviest).cpu()),  # m times the largest share of attention
            "step_size": (once, eta.cpu()),
            "eigenvalue": (once, eigenvalues[:, 0].cpu()),
            "exponent": (once, logits.abs().amax((1, 2)).clamp(min=1.0).cpu()),  # the measured B
            "start_free": (once, (predict(free, x) - y).norm(dim=(1, 2)).cpu()),  # residual without pairs
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how much of each bound is used."""
        rows, widest = self.n_samples * self.n_outputs, data.isel(width=-1)
        over = data.gradient / (2 * rows**0.5 * data.residual)
        # The theorem's step size at B = 1, the largest it can be.
        promised = data.eigenvalue / data.width * step_size_of_theorem(1.0, n_samples=rows, n_outputs=1, width=1)
        return {
            "SN-D1": {
                "bound_over_gradient": lowest(np.exp(3 * data.exponent) / over),
                "share_used_with_heaviest_neuron": highest(over / data.heaviest),
            },
            "SN-D2": {
                "longest_step_of_theorem": highest(promised * data.gradient),
                "longest_usable_step": highest(widest.step_size * widest.gradient),
            },
            "SN-D3": {
                "constant": highest(data.residual.isel(step=0) / rows**0.5),
                "growth_without_pairs": widest.start_free / data.start_free.isel(width=0),
            },
        }
