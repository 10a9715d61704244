"""The experiments of the chapter: what more heads do, at which step size, and on which data they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, measures, network, starts
from attnbook.multi_head.checks import at_least, containing
from attnbook.multi_head.data import Drawn
from attnbook.multi_head.experiment_parts import Gridded, random_networks
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.on_mixture import OnMixture

FIRST = 8  # steps with a look at the loss after each: a step size far too large shows there
FINISHED = 1e-18  # training loss at which no step changes a parameter any more, not even with the largest step size
ROOT_CELLS = ((16, 128.0), (256, 512.0), (4096, 2048.0))  # heads and step sizes on the line eta = 32 sqrt(H)
SMALL_STEP, LARGE_STEPS = 0.5, {256: 128.0, 4096: 512.0}  # one that does not grow, and eta = 8 sqrt(H)


@dataclass(frozen=True, kw_only=True)
class StepSizeMap(OnMixture):
    r"""Number of heads and step size together, from zero: there $H$ heads are one head with two step sizes."""

    id = "multi_head.step_size_map"
    summary = "Mixture data: the number of heads and the step size together"
    needs = "float64"
    budget_seconds = 50
    smoke = {"n_samples": 8, "n_test": 20, "steps": 5, "seeds": (0, 1)}
    axes = {"heads": "heads", "step_size": "step_sizes"}

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 20  # of a token
    n_patterns: int = 4  # patterns M that say nothing
    relevant_fraction: float = 0.1  # share zeta of tokens that carry the label
    noise: float = 0.3  # bound on the noise along patterns
    free_noise: float = 1.0  # norm of the noise orthogonal to all patterns
    n_samples: int = 40  # training samples
    n_test: int = 1000  # test samples
    heads: tuple[int, ...] = (1, 16, 256, 4096)  # increasing
    step_sizes: tuple[float, ...] = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0)  # each with every number of heads
    steps: int = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, step_sizes = zip((1, SMALL_STEP), *ROOT_CELLS, *LARGE_STEPS.items(), strict=True)
        containing(heads, heads=self.heads)
        containing(step_sizes, step_sizes=self.step_sizes)
        at_least(1, n_samples=self.n_samples, n_test=self.n_test)

    def samples(self, seeds: Sequence[int], device: torch.device | None = None) -> tuple[Drawn, Drawn]:
        """Draw training and test samples of some seeds, where it computes by default."""
        where = device or self.place()
        return self.draw(seeds, self.n_samples, "samples", where), self.draw(seeds, self.n_test, "test", where)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every number of heads with every step size."""
        train, test = self.samples(seeds, device)

        def of_cell(n_heads: int, step_size: float) -> Arrays:
            found = trained(train, test, n_heads, step_size, self.steps)
            return {name: (("seed",), array) for name, array in found.items()}

        return self.grid(("heads", "step_size"), of_cell, progress=progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors at small and large steps, and how far attention differs along the root of H."""
        error = data.test_error
        large = {f"error_{h}_large_step": error.sel(heads=h, step_size=step) for h, step in LARGE_STEPS.items()}
        small = {f"error_{h}_small_step": error.sel(heads=h, step_size=SMALL_STEP) for h in (1, 256)}
        root = xr.concat([data.mass.sel(heads=h, step_size=step, drop=True) for h, step in ROOT_CELLS], "cell")
        return {"MH-H.9-root": {**small, **large, "mass_gap": root.max("cell") - root.min("cell")}}


@dataclass(frozen=True, kw_only=True)
class AlternatingLabels(Gridded):
    r"""Data that need many heads: one token $z$ beside a zero token, and labels that alternate as $z$ grows."""

    id = "multi_head.alternating_labels"
    summary = "Labels that alternate along a line: how many heads can fit them"
    needs = "float64"
    budget_seconds = 20
    smoke = {"starts": 3, "steps": 20, "seeds": (0, 1)}
    axes = {"heads": "heads"}

    heads: tuple[int, ...] = (1, 2, 4, 16)
    starts: int = 40  # random starts of each seed
    scale: float = 1.0  # standard deviation of their entries
    step_size: float = 0.5
    steps: int = 3000
    spacing: float = 0.7  # z = 0.7, 1.4, 2.1

    def __post_init__(self) -> None:
        super().__post_init__()
        containing((1, 2), heads=self.heads)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train on three samples."""
        z = self.spacing * torch.arange(1, 4, device=device).double()
        batch = on_a_line(z.repeat(len(seeds) * self.starts, 1))

        def fitted(n_heads: int) -> Arrays:
            rngs = [stream(seed, "start", i) for seed in seeds for i in range(self.starts)]
            start = random_networks(rngs, (n_heads, 2, 1), scale=self.scale, device=device)
            last = network.gradient_descent(start, batch, step_size=self.step_size, steps=self.steps).parameters
            right = (layer.outputs(last, batch[0]) * batch[1] > 0).all(1).view(len(seeds), -1)
            return {"fitted": (("seed",), right.double().mean(1).cpu().numpy())}

        return self.grid(("heads",), fitted, progress=progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off shares of networks that fit."""
        few = {f"fitted_{h}": data.fitted.sel(heads=h) for h in (1, 2)}
        return {"MH-OPEN-heads": few | {"fitted_most": data.fitted.isel(heads=-1)}}


def trained(train: Drawn, test: Drawn, n_heads: float, step_size: float, steps: int) -> dict[str, np.ndarray]:
    """Train one network of every seed from zero, until the loss is zero up to rounding; return what is left behind."""
    objective, (members, n_samples, *sizes) = logistic(train.labels), train.tokens.shape
    counts = train.tokens.new_full((members, 1), n_heads)

    def loss(now: Parameters) -> dict[str, Tensor]:
        return {"loss": objective(layer.outputs(now, train.tokens, counts=counts))[0]}

    history = head_groups.gradient_descent(
        starts.zero(members, *sizes, device=train.tokens.device), train.tokens, objective, counts=counts,
        step_size=step_size, steps=steps, record=loss, stop=lambda records: records["loss"] <= FINISHED,
        record_at=sorted({*range(min(FIRST, steps) + 1), *log_spaced(steps, 12)}),
    )  # fmt: skip
    last = history.parameters
    found = {
        "train_loss": loss(last)["loss"],
        "test_error": measures.error_rate(layer.outputs(last, test.tokens, counts=counts), test.labels),
        # attention on relevant tokens, of as many samples as there are in training
        "mass": measures.relevant_mass(last, test.tokens[:, :n_samples], test.relevant[:, :n_samples])[:, 0],
        "highest_loss": torch.from_numpy(history.records["loss"].max(0)),
    }
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


def on_a_line(z: Tensor) -> network.Batch:
    """Return samples of two tokens of dimension one, zero and z > 0, increasing, with labels that alternate."""
    tokens = torch.stack([torch.zeros_like(z), z], dim=-1)[..., None]
    labels = (-1.0) ** torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    return tokens, labels.expand(len(z), -1)
