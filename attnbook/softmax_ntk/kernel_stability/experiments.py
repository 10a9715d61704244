"""The experiments of the chapter: how far kernels and their smallest eigenvalues move. The paper has none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.runtime import Progress
from attnbook.core.settings import check_increasing
from attnbook.softmax_ntk.conditioning import rank
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.kernel_stability.lemmas import RUNGS, LemmaB1
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation, infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import Direction, displaced
from attnbook.softmax_ntk.stability_bounds import certified_radius, kernel_change_bound, rank_bound_of_signs
from attnbook.softmax_ntk.sweeps import each, measured_exponent, slope
from attnbook.softmax_ntk.training import Problem, starting_networks

__all__ = ["RUNGS", "EigenvalueRadius", "KernelMovement", "LemmaB1", "SmallestEigenvalues"]

MOVES: tuple[Direction, ...] = ("random", "common", "spread", "gdlike")
FAR: tuple[Direction, ...] = ("random", "common", "spread", "inward")


@dataclass(frozen=True, kw_only=True)
class KernelMovement(Experiment):
    """Lemma 5.1: every neuron moves by a radius; how far does the kernel?"""

    id = "softmax_ntk.kernel_movement"
    summary = "Lemma 5.1: change of the kernel against radius, direction, width, samples and outputs"
    needs = "float64"
    budget_seconds = 20
    smoke = {
        "n_samples": 5, "n_inputs": 7, "width": 32, "radii": (0.1, 0.3), "radius": 0.1, "widths": (8, 16, 32),
        "sizes": (3, 5), "outputs": (1, 2), "seeds": (0, 1),
    }  # fmt: skip
    full = {"n_samples": 128, "n_outputs": 4, "width": 16384, "widths": (512, 2048, 8192, 32768), "chunk": 1}

    n_samples: int = 32  # training inputs
    n_inputs: int = 16  # entries of an input
    n_outputs: int = 2  # entries of an output
    width: int = 1024  # neurons
    radii: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # how far each neuron moves, increasing
    radius: float = 0.01  # where other sizes vary: one of the radii, the end of those that the lemma speaks of
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)  # numbers of neurons
    sizes: tuple[int, ...] = (8, 16, 32, 64)  # numbers of samples and
    outputs: tuple[int, ...] = (1, 2, 4, 8)  # of outputs: the first ones of one network with the most of both
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "widths", least=3)
        check_increasing(self, "radii", "sizes", "outputs", least=2)
        if self.radius not in self.radii:
            raise ValueError(f"radius: expected one of the radii {self.radii}, got {self.radius}")

    def coordinates(self) -> dict[str, Any]:
        """Name radii, directions, networks and sizes."""
        sizes = {"radius": self.radii, "width": self.widths, "size": self.sizes, "output": self.outputs}
        return {"direction": list(MOVES), "network": ACTIVATIONS} | {
            name: list(values) for name, values in sizes.items()
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Sweep over all sizes, one network after the other."""
        return each(ACTIVATIONS, "network", lambda name: self._sweeps(name, seeds, device), progress)

    def _sweeps(self, activation: Activation, seeds: tuple[int, ...], device: torch.device) -> Arrays:
        """Changes of the kernel of one network, and what they are to be compared with."""

        def changes(directions: Sequence[Direction], radii: Sequence[float], **sizes: Any) -> tuple[Any, Any, Any]:
            given = {name: getattr(self, name) for name in ("width", "n_samples", "n_inputs", "n_outputs")}
            networks, inputs, _ = starting_networks(Problem(activation, **(given | sizes)), seeds, device=device)
            kernel = ntk_gram(networks, inputs)
            moved = [[ntk_gram(displaced(networks, d, r, seeds=seeds), inputs) for d in directions] for r in radii]
            change = np.array([[_norm(one - kernel) for one in row] for row in moved])
            return change, _norm(kernel), measured_exponent(networks, inputs)

        change, norm, exponent = changes(MOVES, self.radii)
        wide = [changes(MOVES, (self.radius,), width=m) for m in self.widths]
        return {
            "change": (("radius", "direction", "seed"), change),
            "norm": (("seed",), norm),
            "exponent": (("seed",), exponent),  # the measured B
            "unpaired": (("radius", "seed"), changes(("gdlike",), self.radii, start="independent")[0][:, 0]),
            "by_width": (("width", "direction", "seed"), [w[0][0] / w[1] for w in wide]),  # over the norm
            "by_size": (("size", "output", "seed"), self._by_size(activation, seeds, device)),  # random
        }

    def _by_size(self, activation: Activation, seeds: tuple[int, ...], device: torch.device) -> np.ndarray:
        n, d = self.sizes[-1], self.outputs[-1]
        networks, x, _ = starting_networks(Problem(activation, self.width, n, self.n_inputs, d), seeds, device=device)
        change = ntk_gram(displaced(networks, "random", self.radius, seeds=seeds), x) - ntk_gram(networks, x)
        blocks = change.view(-1, d, n, d, n)
        return np.array([[_norm(blocks[:, :k, :i, :k, :i]) for k in self.outputs] for i in self.sizes])

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off bounds, slopes and ratios."""
        relative, sizes = data.change / data.norm, {"n_samples": self.n_samples, "n_outputs": self.n_outputs}
        random = relative.sel(direction="random", radius=self.radius)
        smooth = slope(relative.sel(network=["softmax", "exp"]), "radius")
        largest = data.change.sel(radius=self.radius, network="softmax").max("direction")
        b = data.exponent.sel(network="softmax")
        bound = kernel_change_bound(self.radius, exponent=1.0, **sizes) * np.exp(10 * (b - 1))
        wide = slope(data.by_width.sel(network=["softmax", "exp"], direction=["random", "spread"]), "width")
        shared = slope(data.by_width.sel(network="exp", direction="common"), "width")
        one = 2 * data["size"] * self.radius / data.by_size.sel(network="relu", output=1)

        def of(direction: str, network: str) -> xr.DataArray:
            return smooth.sel(direction=direction, network=network)

        return {
            "SN-L5.1": {
                "bound_over_change": lowest(bound / largest),
                "bound_over_change_if_b_were_1": lowest(bound * np.exp(10 * (1 - b)) / largest),
            },
            "SN-L5.1-order": {
                "radius_random": of("random", "softmax"), "radius_spread": of("spread", "softmax"),
                "samples": slope(data.by_size.isel(output=-1).sel(network="softmax"), "size"),
                "outputs": slope(data.by_size.isel(size=-1).sel(network="softmax"), "output"),
            },
            "SN-L5.1m-worst": {
                "slope_random": wide.sel(direction="random", network="softmax"),
                "slope_spread": wide.sel(direction="spread", network="softmax"),
                "slope_common_exp": shared,
            },
            "SN-L5.1-relu": {"bound_over_change": lowest(one)},
            "SN-L5.1R-gdlike": {
                "slope_softmax": of("gdlike", "softmax"), "slope_exp": of("gdlike", "exp"),
                "unpaired_softmax": slope(data.unpaired.sel(network="softmax"), "radius"),
                "unpaired_exp": slope(data.unpaired.sel(network="exp"), "radius"),
                # Of the mean: in some networks no neuron switches at the smallest radius.
                "slope_relu": slope(relative.sel(network="relu", direction="gdlike").mean("seed"), "radius"),
            },
            "SN-L5.1R-common": {
                "change_softmax": highest(relative.sel(direction="common", network="softmax")),
                "slope_exp": of("common", "exp"),
                "random_exp_over_softmax": random.sel(network="exp") / random.sel(network="softmax"),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EigenvalueRadius(Experiment):
    """Claim E.5: how far may neurons move before the smallest eigenvalue of the kernel has lost half?"""

    id = "softmax_ntk.eigenvalue_radius"
    summary = "Claim E.5: the radius at which the smallest eigenvalue has lost half"
    needs = "float64"
    budget_seconds = 25
    smoke = {
        "sizes": (7, 18), "width": 64, "n_inputs": 17, "outputs": (1,), "radii": (0.01, 4.0), "seeds": (0, 1),
    }  # fmt: skip
    full = {"sizes": (16, 32, 64, 128, 256), "width": 8192, "chunk": 1}

    sizes: tuple[int, ...] = (16, 32, 64)  # numbers of samples, the last of them more than inputs
    n_inputs: int = 16  # entries of an input
    outputs: tuple[int, ...] = (1, 2)  # networks with fewer are the first outputs of those with the most
    width: int = 1024  # neurons
    radii: tuple[float, ...] = (0.01, *(float(2 ** (k / 4)) for k in range(-4, 17)))  # the first is Lemma 5.1's largest
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes", "outputs", "radii")
        if self.sizes[-1] <= self.n_inputs:
            raise ValueError(f"sizes: the last must be larger than n_inputs = {self.n_inputs}, got {self.sizes}")

    def coordinates(self) -> dict[str, Any]:
        """Name sizes, outputs, radii, directions and networks."""
        sizes = {"size": self.sizes, "output": self.outputs, "radius": self.radii}
        return {"direction": list(FAR), "network": ACTIVATIONS} | {name: list(values) for name, values in sizes.items()}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Follow the smallest eigenvalues of all networks."""
        return each(
            ACTIVATIONS, "network",
            lambda name: each(self.sizes, "size", lambda n: self._sweep(name, n, seeds, device), None), progress,
        )  # fmt: skip

    def _sweep(self, activation: Activation, size: int, seeds: tuple[int, ...], device: torch.device) -> Arrays:
        d = self.outputs[-1]
        problem = Problem(activation, self.width, size, self.n_inputs, d)
        networks, inputs, _ = starting_networks(problem, seeds, device=device)

        def smallest(kernel: Tensor) -> np.ndarray:
            """Of the networks with the first outputs only, ``(outputs, seeds)``."""
            blocks = kernel.view(-1, d, size, d, size)
            first = [blocks[:, :k, :, :k].reshape(-1, k * size, k * size) for k in self.outputs]
            return np.stack([torch.linalg.eigvalsh(matrix)[:, 0].cpu().numpy() for matrix in first])

        after = [[smallest(ntk_gram(displaced(networks, w, r, seeds=seeds), inputs)) for w in FAR] for r in self.radii]
        return {
            "before": (("output", "seed"), smallest(ntk_gram(networks, inputs))),
            "after": (("radius", "direction", "output", "seed"), after),
            "exponent": (("seed",), measured_exponent(networks, inputs)),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the radii at which half is lost, and the share of networks that never lose it."""
        lost, b = first_loss(data), data.exponent.sel(network="softmax")
        unit = certified_radius(1.0, n_samples=1, n_outputs=1, exponent=1.0)
        certified = unit * data.before.sel(network="softmax") / (data["size"] * data.output) * np.exp(10 * (1 - b))
        ours = lost.sel(network="softmax", direction=["random", "spread", "inward"])
        more = lost.isel(size=data["size"].values > self.n_inputs)  # samples than inputs
        kept = (lost.sel(direction=["random", "spread"]) == np.inf).mean(["size", "output", "direction", "seed"])
        shared = (more.sel(direction="common") == np.inf).mean(["size", "output", "seed"])
        spread = (more.sel(direction="spread", network="relu") == np.inf).mean()
        return {
            "SN-E5": {"certified_radius": highest(certified), "radius_of_first_loss": lowest(ours)},
            "SN-E5-inward": {
                "radius_inward": highest(more.sel(network="softmax", direction="inward")),
                "share_kept_softmax": kept.sel(network="softmax"), "share_kept_exp": kept.sel(network="exp"),
                "share_kept_common_softmax": shared.sel(network="softmax"),
                "share_kept_common_exp": shared.sel(network="exp"), "share_kept_spread_relu": spread,
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SmallestEigenvalues(Experiment):
    """How small is it to begin with? Kernels at infinite width, and the rank of paired networks."""

    id = "softmax_ntk.smallest_eigenvalues"
    summary = "Smallest eigenvalues at infinite width, and the rank of paired networks"
    needs = "cpu"
    budget_seconds = 5
    smoke = {
        "sizes": (3, 5), "inputs": (2, 7), "rank_widths": (16, 32), "rank_size": 11, "rank_inputs": 3, "seeds": (0, 1),
    }  # fmt: skip
    full = {"sizes": (4, 8, 16, 32, 64, 128, 256), "inputs": (4, 16, 64)}

    sizes: tuple[int, ...] = (4, 8, 16, 32, 64)  # numbers of samples; each is drawn anew
    inputs: tuple[int, ...] = (4, 16)  # numbers of inputs
    rank_widths: tuple[int, ...] = (8, 12, 16, 20, 24, 28, 32, 40, 48)  # 32 among them
    rank_size: int = 24  # samples of the kernels whose rank is taken
    rank_inputs: int = 4  # entries of their inputs
    rank_outputs: int = 2  # entries of their outputs
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes", "inputs", "rank_widths", least=2)

    def coordinates(self) -> dict[str, Any]:
        """Name sizes, inputs, widths and networks."""
        sizes = {"size": self.sizes, "inputs": self.inputs, "rank_width": self.rank_widths}
        return {"network": ACTIVATIONS} | {name: list(values) for name, values in sizes.items()}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Compute eigenvalues of closed forms, and ranks of narrow networks, on the CPU."""

        def smallest(n_samples: int, n_inputs: int, seed: int) -> list[float]:
            inputs = draw_sample(n_samples, n_inputs, 1, seed=seed).inputs
            return [np.linalg.eigvalsh(infinite_width_kernel(name, inputs))[0] for name in ACTIVATIONS]

        def ranks(width: int) -> Arrays:
            problem = Problem("softmax", width, self.rank_size, self.rank_inputs, self.rank_outputs)
            networks, x, _ = starting_networks(problem, seeds)
            sizes = {"n_samples": self.rank_size, "n_inputs": self.rank_inputs}
            bounds = [rank_bound_of_signs(signs, **sizes) for signs in networks.signs.numpy()]
            # The second is what the signs that were drawn allow.
            return {"rank": (("seed",), rank(ntk_gram(networks, x))), "sign_bound": (("seed",), bounds)}

        found = [[[smallest(n, d, seed) for n in self.sizes] for d in self.inputs] for seed in seeds]
        return each(self.rank_widths, "rank_width", ranks, progress) | {
            "smallest": (("seed", "inputs", "size", "network"), found)
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off eigenvalues and ranks."""
        full = data["rank"].sel(rank_width=32) == self.rank_size * self.rank_outputs
        return {
            "SN-LAM-positive": {
                "smallest_eigenvalue": lowest(data.smallest),
                "rank_off_sum_over_signs": highest(abs(data["rank"] - data.sign_bound)),
                "share_full_at_width_32": full.mean("seed"),
            },
        }  # fmt: skip


def first_loss(data: xr.Dataset) -> xr.DataArray:
    """Return the first radius at which less than half of the smallest eigenvalue is left; infinite if there is none."""
    return data.radius.where(data.after < data.before / 2).min("radius").fillna(np.inf)


def _norm(matrices: Tensor) -> np.ndarray:
    return matrices.flatten(1).norm(dim=1).cpu().numpy()
