"""The experiments of the chapter: Theorems 3, 4 and 5 with Figure 1, and Figure 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest, stacked
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, double_device, threads
from attnbook.global_attention.loss_landscape.hessian import MODELS, HessianSpectrum
from attnbook.global_attention.loss_landscape.interpolation import fit_all_weights
from attnbook.global_attention.masks import Member, Model, Setup, Training, train_members
from attnbook.global_attention.regions import count_regions, crossover_width, hinge_network, region_bound
from attnbook.global_attention.rescaling import Minimum, output
from attnbook.global_attention.two_layer import Hessian, Softplus

__all__ = ["STATIONARY", "HessianSpectrum", "LossLandscape", "features", "largest_correlation", "log10_bounds"]

WIDEST = 5000  # up to which bounds are compared
HINGES = ((6, 2), (8, 2), (10, 2), (12, 2), (9, 3), (12, 3))  # hidden units and relevant inputs of counted hinges
PLANE = (16, 2)  # the same of random arrangements
MASK_FACTORS = (0.001, 0.01, 0.1, 0.5, 1.0, 10.0)  # at which the orbit of a minimum is looked at
HIDDEN_FACTORS = (0.1, 1.0, 10.0)
GROWN = 1000.0  # factor of the first layer that shows how volumes grow
PENALISED = (1.0, 100.0)  # factors of the mask at which the L2 penalty is minimised over the orbit
MAP_RANGE = 3.0  # natural logarithms of the factors over which the orbit is mapped, to either side
NETWORKS: tuple[Model, ...] = (*MODELS, "l1_attention")  # trained as for Table 1
LAYERS = ("first", "first, masked", "second")  # whose norms are taken of trained networks
STATIONARY = 1e-6  # norm of the gradient up to which a run of Theorem 5 counts as at rest
STUCK, FITTED = 1e-4, 1e-12  # its relative losses from which it counts as stuck, and up to which as having fitted


@dataclass(frozen=True, kw_only=True)
class LossLandscape(Experiment):
    """Linear regions counted, a known minimum rescaled, networks (1) trained on many and on few samples."""

    id = "global_attention.loss_landscape"
    summary = "Theorems 3, 4, 5, Figure 1, A5, C.1: linear regions, rescaled minima, few samples, trained weights"
    budget_seconds = 25
    smoke = {
        "n_samples": 50, "steps": 10, "fresh": 100, "map_points": 5, "few_samples": 11, "few_inputs": 5,
        "residual_widths": (7, 11), "fit_widths": (3, 5, 11), "fit_steps": 5, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    figure_inputs: int = 100  # inputs p of the baseline in Figure 1
    figure_sparsities: tuple[int, ...] = (5, 10, 20, 50, 80)  # inputs kept by its masks; the figure's own are lost
    n_inputs: int = 32  # of the trained networks
    n_relevant: int = 4  # inputs that their teacher looks at
    width: int = 32  # their hidden units, twice the teacher's
    n_samples: int = 1000  # they are trained on
    noise: float = 0.5  # standard deviation of the label noise
    penalty: float = 1e-2  # L1 weight on the mask of l1_attention
    steps: int = 2000  # of Adam
    fresh: int = 20_000  # inputs on which they are looked at
    map_points: int = 31  # points per axis of the map of the orbit
    few_samples: int = 40  # n of Theorem 5
    few_inputs: int = 20  # its inputs p
    sharpness: float = 10.0  # of its softplus
    residual_widths: tuple[int, ...] = (5, 10, 20, 30, 39, 40, 41, 60)  # when only the second layer is fitted
    fit_widths: tuple[int, ...] = (3, 4, 5, 7, 10, 20, 40)  # when all weights are trained
    fit_steps: int = 300  # most steps of that training

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {self.few_samples} <= set(self.residual_widths) & set(self.fit_widths):
            raise ValueError(f"residual_widths, fit_widths: expected few_samples = {self.few_samples} among both")

    @property
    def log_factors(self) -> np.ndarray:
        """Natural logarithms of the factors at which the orbit is mapped."""
        return np.linspace(-MAP_RANGE, MAP_RANGE, self.map_points)

    def coordinates(self) -> dict[str, Any]:
        """Name what the axes stand for."""
        return {
            "kept": [*self.figure_sparsities, self.figure_inputs],
            "mask": list(self.figure_sparsities),
            "biases": ["with", "without"],
            "network": list(NETWORKS),
            "layer": list(LAYERS),
            "mask_factor": list(MASK_FACTORS),
            "hidden_factor": list(HIDDEN_FACTORS),
            "penalised": list(PENALISED),
            "log_mask": self.log_factors,
            "log_hidden": self.log_factors,
            "width": list(self.residual_widths),
            "model": list(MODELS),
            "fit_width": list(self.fit_widths),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Count, rescale, train."""
        return {
            **self._regions(seeds),
            **stacked("seed", (self._orbit(Minimum.draw(seed), seed) for seed in seeds)),
            **self._trained(seeds, device, progress),
            **self._random_features(seeds),
            **self._fits(seeds, device),
        }

    def _regions(self, seeds: tuple[int, ...]) -> Arrays:
        """Bounds of Theorem 3, and exact counts: of the network of its proof and of random ones."""
        widths = np.arange(1, WIDEST + 1)
        p, kept = self.figure_inputs, self.figure_sparsities
        last = [widths[log10_bounds(widths, s) > log10_bounds(widths, p)].max() for s in kept]
        drawn = [stream(seed, "no biases") for seed in seeds]
        random = [(rng.standard_normal(PLANE), rng.standard_normal(PLANE[0])) for rng in drawn]
        planes = [
            [count_regions(normals, offsets * with_biases) for with_biases in (1, 0)] for normals, offsets in random
        ]
        return {
            "log10_bound": (("kept",), np.array([log10_bounds(widths, s)[-1] for s in (*kept, p)])),
            "reversed_up_to": (("mask",), np.array(last)),
            "crossover": (("mask",), np.array([crossover_width(p, s) for s in kept])),
            "hinge_regions": (("hinge",), np.array([count_regions(*hinge_network(*size)[:2]) for size in HINGES])),
            "plane_regions": (("seed", "biases"), np.array(planes)),
        }

    def _orbit(self, minimum: Minimum, seed: int) -> Arrays:
        """The orbit of one minimum: what Theorem 4 says of it, a map, and what an L2 penalty chooses."""
        grid, plane, factors = ("mask_factor", "hidden_factor"), ("log_mask", "log_hidden"), np.exp(self.log_factors)
        points = [(a, b) for a in MASK_FACTORS for b in HIDDEN_FACTORS]
        hessians = [minimum.hessian(*at) for at in points]
        inputs = stream(seed, "fresh inputs").standard_normal((101, len(minimum.mask)))
        outputs = np.array([output(minimum.network(*at), inputs) for at in ((1.0, 1.0), *points)])
        each = {
            "eigenvalue": [float(np.linalg.eigvalsh(hessian.dense().numpy())[-1]) for hessian in hessians],
            "gradient": [float(hessian.gradient.abs().max()) for hessian in hessians],
            "function_change": np.abs(outputs[1:] - outputs[0]).max((1, 2)),
        }
        least = np.array([minimum.least_penalty(factor) for factor in PENALISED])
        return {
            **{name: (grid, np.reshape(values, (len(MASK_FACTORS), -1))) for name, values in each.items()},
            "delta": ((), np.array(minimum.dense.diagonal()[: len(minimum.mask)].max())),
            "loss_change": ((), np.array(minimum.loss_change(seed, GROWN))),
            "log_volume": ((), np.array(minimum.log_volume(1.0, GROWN))),
            "sharpness": (plane, np.array([[minimum.sharpness(a, b) for b in factors] for a in factors])),
            "allowed": (plane, np.array([[minimum.allowed(a, b) for b in factors] for a in factors])),
            "penalty": (("penalised",), least[:, 0]),
            "penalised_sharpness": (("penalised",), least[:, 1]),
        }

    def _trained(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train the networks of Table 1, smaller, and look at them on fresh inputs."""
        setup = Setup(self.n_inputs, 10, max(1, self.width // 2), self.width, self.noise, self.fresh)
        sizes = self.n_samples, self.n_relevant, self.penalty
        members = [Member(model, seed, *sizes) for seed in seeds for model in NETWORKS]
        training = Training(self.steps, 64, 5e-3, record_at=(self.steps,), decay=True)
        history = train_members(members, setup, training, device=device, progress=progress)
        seen = []
        for i, member in enumerate(members):
            network = {name: tensor[i].cpu().double().numpy() for name, tensor in history.parameters.items()}
            inputs = stream(member.seed, "pattern inputs").standard_normal((self.fresh, self.n_inputs))
            seen.append(_look_at(network, inputs, setup.teacher(member.seed, self.n_relevant)(inputs)))
        found = {name: np.array([each[name] for each in seen]) for name in seen[0]}
        found["error"] = history.records["test_loss"][-1]
        grid, axes = (len(seeds), len(NETWORKS)), ("seed", "network", "layer")
        return {name: (axes[: a.ndim + 1], a.reshape(*grid, *a.shape[1:])) for name, a in found.items()}

    def _random_features(self, seeds: tuple[int, ...]) -> Arrays:
        """Ranks behind and in front of the activation, for random samples, masks and first layers."""
        ranks, before = np.empty((2, len(seeds), len(self.residual_widths)))
        for at in np.ndindex(ranks.shape):
            width = self.residual_widths[at[1]]
            rng = stream(seeds[at[0]], "random features", width)
            inputs, mask = rng.standard_normal((self.few_samples, self.few_inputs)), rng.random(self.few_inputs)
            hidden = rng.standard_normal((width, self.few_inputs))
            ranks[at] = np.linalg.matrix_rank(features(inputs, mask, hidden, self.sharpness))
            before[at] = np.linalg.matrix_rank((inputs * mask) @ hidden.T)
        axes = ("seed", "width")
        return {"feature_rank": (axes, ranks), "input_rank": (axes, before)}

    def _fits(self, seeds: tuple[int, ...], device: torch.device) -> Arrays:
        """Train all weights on few samples with random labels, without and with a mask."""
        # Losses are in units of that of the output zero; the lowest eigenvalue over the largest is 0 where a run fits.
        where, count, p = double_device(device), len(seeds), self.few_inputs
        activation, names = Softplus(self.sharpness), ("fit_loss", "fit_gradient", "fit_rank", "fit_lowest")
        found = {name: np.zeros((count, 2, len(self.fit_widths))) for name in names}

        def twice(arrays: list[np.ndarray]) -> torch.Tensor:  # baselines, then the same networks with a trained mask
            return to_tensor(np.stack([*arrays, *arrays]), device=where, dtype=torch.float64)

        drawn = [stream(seed, "small samples") for seed in seeds]
        x = twice([rng.standard_normal((self.few_samples, p)) for rng in drawn])
        y = twice([rng.standard_normal(self.few_samples) for rng in drawn])
        masked = torch.arange(2 * count, device=where) >= count
        for k, width in enumerate(self.fit_widths):
            starts = [stream(seed, "initial weights", width) for seed in seeds]
            start = {
                "mask": twice([np.ones(p)] * count),
                "hidden": twice([rng.standard_normal((width, p)) / p**0.5 for rng in starts]),
                "decoder": twice([rng.standard_normal((1, width)) / np.sqrt(width) for rng in starts]),
            }
            with threads(1):
                fit = fit_all_weights(start, x, y, activation=activation, trained_mask=masked, steps=self.fit_steps)
            losses = fit.losses / (y.square().mean(1) / 2)
            for member in range(2 * count):
                at = member % count, member // count, k
                mask, hidden, decoder = (fit.parameters[name][member] for name in start)
                made = activation((x[member] * mask) @ hidden.T)
                found["fit_loss"][at], found["fit_gradient"][at] = losses[member], fit.gradient_norms[member]
                found["fit_rank"][at] = int(torch.linalg.matrix_rank(made))
                if losses[member] > FITTED:
                    point = Hessian(mask if masked[member] else None, hidden, decoder, x[member], y[member][None],
                                    activation=activation, loss="squared")  # fmt: skip
                    values = torch.linalg.eigvalsh(point.dense())
                    found["fit_lowest"][at] = float(values[0] / values[-1])
        return {name: (("seed", "model", "fit_width"), array) for name, array in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Judge counts, orbits, trained networks and fits."""
        return self._of_regions(data) | self._of_orbits(data) | self._of_weights(data) | self._of_fits(data)

    def _of_regions(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        hinge_bounds = [region_bound(*size) for size in HINGES]
        patterns, error = (each / each.sel(network="baseline") for each in (data.patterns, data.error))
        return {
            "GA-T3-bound": {"smallest_count_over_bound": (data.hinge_regions / hinge_bounds).min()},
            "GA-T3-threshold": {"largest_reversed_over_crossover": (data.reversed_up_to / data.crossover).max()},
            "GA-F1-order": {"smallest_log10_gap": data.log10_bound.diff("kept").min()},
            "GA-T3-nobias": {
                "regions_without_biases": data.plane_regions.sel(biases="without"),
                "regions_with_biases": data.plane_regions.sel(biases="with"),
                "bound": xr.DataArray(region_bound(*PLANE)),
            },
            "GA-T3-patterns": {
                "l1_over_baseline": patterns.sel(network="l1_attention"),
                "error_l1_over_baseline": error.sel(network="l1_attention"),
                "attention_over_baseline": patterns.sel(network="attention"),
            },
        }

    def _of_orbits(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        plane = ["log_mask", "log_hidden"]
        flattest = data.sharpness.min(plane)
        start, grown = (data[["penalty", "penalised_sharpness"]].sel(penalised=factor) for factor in PENALISED)
        return {
            "GA-T4-sharp": {
                "smallest_eigenvalue_over_bound": lowest(data.eigenvalue * data.mask_factor**2 / data.delta),
                "largest_gradient": highest(data.gradient),
                "largest_function_change": highest(data.function_change),
            },
            "GA-T4-volume": {"largest_loss_change": highest(data.loss_change), "log_volume_gain": data.log_volume},
            "GA-T4-orbit": {
                "sharpest_allowed": data.sharpness.where(data.allowed > 0).max(plane) / flattest,
                "sharpest_mapped": data.sharpness.max(plane) / flattest,
            },
            "GA-G1-l2-sharp": {"chosen_over_flattest": start.penalised_sharpness / flattest},
            "GA-G1-l2-escape": {
                "penalty_ratio": grown.penalty / start.penalty,
                "sharpness_ratio": grown.penalised_sharpness / start.penalised_sharpness,
            },
        }

    def _of_weights(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        ratio = data.norm.sel(network="baseline") / data.norm.sel(network="attention")
        raw, masked = ratio.sel(layer=["first", "second"]), ratio.sel(layer="first, masked")
        unpenalised = data.least_variance.sel(network=list(MODELS))
        return {
            "GA-T1-norms": {
                "share_of_seeds": (raw >= 1).all("layer").mean("seed"),
                **{f"{name}_layer_ratio": ratio.sel(layer=name) for name in ("first", "second")},
            },
            "GA-T1-norms-masked": {"share_of_seeds": (masked >= 1).mean("seed"), "masked_layer_ratio": masked},
            "GA-A5": {
                "smallest_correlation": lowest(data.correlation),
                "smallest_variance": lowest(unpenalised),
                "smallest_variance_l1": lowest(data.least_variance.sel(network="l1_attention")),
            },
        }

    def _of_fits(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        n, weights = self.few_samples, (self.few_inputs + 1) * data.fit_width  # the mask not counted
        between = (weights >= 2 * n) & (data.fit_width < n)
        stuck = (data.fit_gradient <= STATIONARY) & (data.fit_loss >= STUCK)
        enough = data.fit_loss.sel(fit_width=n)
        narrow = data.fit_loss.where((data.fit_width >= n // 4) & (data.fit_width < n))
        return {
            "GA-T5-rank": {
                "largest_loss": highest(enough),
                "smallest_rank_over_samples": lowest(data.fit_rank.sel(fit_width=n) / n),
            },
            "GA-T5-generic": {
                "rank_mismatches": highest((data.feature_rank != np.minimum(data.width, n)).sum("width"))
            },
            "GA-T5-argument": {
                "preactivation_rank": highest(data.input_rank.sel(width=n)),
                "feature_rank": lowest(data.feature_rank.sel(width=n)),
            },
            "GA-T5-stuck": {
                "stuck_share": stuck.where(between).mean(["model", "fit_width"]).mean(),
                "lowest_curvature": data.fit_lowest.where(stuck & between, 0).min(),
                "largest_loss_from_a_quarter": narrow.max(),
            },
        }


def features(inputs: np.ndarray, mask: np.ndarray, hidden: np.ndarray, sharpness: float) -> np.ndarray:
    """Return what softplus units make of each sample, ``(samples, width)``."""
    return Softplus(sharpness)(torch.from_numpy((inputs * mask) @ hidden.T)).numpy()


def log10_bounds(widths: np.ndarray, n_relevant: int) -> np.ndarray:
    """Return the logarithm of Theorem 3's bound for many widths; minus infinity where there are too few units."""
    with np.errstate(divide="ignore"):
        return n_relevant * np.log10(widths // n_relevant)


def largest_correlation(bias: np.ndarray, inputs: np.ndarray, on: np.ndarray) -> float:
    r"""Return the largest $|\mathrm{cor}(u,h_t(x_{\cdot k}))|$ over outputs, units $t$ and inputs $k$.

    Mask and second layer only scale $h_t(x_{\cdot k})=x_ka_kw^{(2)}_t\phi'_t$, so neither enters a correlation.
    """
    # All moments are matrix products; a unit is on or off, so that its square is itself.
    centred, active = (bias - bias.mean(0)) / bias.std(0), on / len(inputs)
    spread = np.sqrt(np.square(inputs).T @ active - np.square(inputs.T @ active))
    seen, largest = spread > 0, 0.0
    for one in centred.T:
        products = (inputs * one[:, None]).T @ active
        largest = max(largest, float(np.abs(products[seen] / spread[seen]).max(initial=0.0)))
    return largest


def _look_at(network: dict[str, np.ndarray], inputs: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray | float]:
    """Measure one network, on fresh inputs with clean labels."""
    hidden, decoder = network["hidden"], network["decoder"]
    folded = hidden * network["mask"]
    before = inputs @ folded.T
    on, made = before > 0, np.maximum(before, 0)
    return {
        "patterns": float(len(np.unique(np.packbits(on, axis=1), axis=0))),
        "norm": np.array([np.linalg.norm(layer) for layer in (hidden, folded, decoder)]),
        "correlation": largest_correlation(made @ decoder.T - truth, inputs, on),
        "least_variance": float(np.linalg.eigvalsh(np.cov(made.T))[0]),
    }
