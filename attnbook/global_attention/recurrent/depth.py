r"""Appendix D.2, beyond two layers: does a mask save samples with three layers too, where its assumption holds?

The paper gives the model, the assumption (a gradient that is correlated with the residual) and the direction (fewer
samples than without a mask); it has no experiment. Inputs are bounded and masks lie in [0, 1], as (A1) and (A4) ask.

Networks are $w^{(D)}\phi(w^{(D-1)}\dots\phi(w^{(1)}(x\odot a)))$. Their parameters are ``mask`` $=a$, ``(inputs,)``,
and ``layer_1`` to ``layer_D``, each ``(outputs, inputs)`` of its layer, the last with one output; a member axis leads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads

__all__ = ["MODELS", "Depth", "at_best_step_size", "draw_deep", "largest_gradient_correlation", "predict_deep"]

MODELS = ("baseline", "attention", "l1_attention")


@dataclass(frozen=True, kw_only=True)
class Depth(Experiment):
    """Errors on clean labels of three-layer networks, and the largest correlation of a gradient with the residual."""

    id = "global_attention.depth"
    summary = "D.2: networks of three layers with and without a mask, error against sample size"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {
        "sizes": (20, 40), "judged_size": 40, "steps": 4, "n_test": 40, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip

    n_inputs: int = 32  # p
    n_relevant: int = 4  # inputs that the teacher looks at
    teacher_width: int = 8  # units of each hidden layer of the teacher
    width: int = 32  # units of each hidden layer of the networks
    noise: float = 0.5  # standard deviation of the label noise; the clean labels have 1
    sizes: tuple[int, ...] = (500, 1000, 2000)  # training samples, each twice the last
    judged_size: int = 1000  # one of them, not the first
    n_test: int = 4000  # held-out samples
    penalty: float = 0.01  # L1 weight on the mask of l1_attention
    step_sizes: tuple[float, ...] = (0.01, 0.03, 0.1)  # of Adam, falling along a cosine; each model is read at its best
    batch_size: int = 64  # samples per step
    steps: int = 600  # of training

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judged_size not in self.sizes[1:] or any(b != 2 * a for a, b in pairwise(self.sizes)):
            raise ValueError(f"sizes: expected doubling ones, judged_size among all but the first, got {self.sizes}")

    def coordinates(self) -> dict[str, Any]:
        """Name models, sizes and step sizes."""
        return {"size": list(self.sizes), "model": list(MODELS), "step_size": list(self.step_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all models at all sizes and step sizes as one program."""
        members = list(product(range(len(seeds)), self.sizes, MODELS, self.step_sizes))
        x, y, test, truth = map(torch.stack, zip(*(self._data(seed, device) for seed in seeds), strict=True))
        own = torch.tensor([k for k, *_ in members], device=device)[:, None]
        drawn = {(k, n): stream(seed, "deep batches", n).integers(n, size=(self.steps, self.batch_size))
                 for k, seed in enumerate(seeds) for n in self.sizes}  # fmt: skip
        rows = torch.as_tensor(np.stack([drawn[k, n] for k, n, *_ in members], axis=1), device=device)
        starts = [draw_deep(self.n_inputs, [self.width] * 2, rng=stream(seed, "deep start")) for seed in seeds]
        masked = torch.tensor([model != "baseline" for _, _, model, _ in members], device=device)[:, None]
        penalty = to_tensor([self.penalty * (model == "l1_attention") for _, _, model, _ in members], device=device)

        def losses(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> Tensor:
            mask = torch.where(masked, parameters["mask"], 1.0)  # stays at one for the baseline
            residuals = predict_deep(parameters | {"mask": mask}, batch[0]) - batch[1]
            return residuals.square().mean(1) + penalty * mask.abs().sum(1)

        with threads(1):
            trained = ensemble.train(
                ensemble.autograd(losses),
                {name: to_tensor(np.stack([starts[k][name] for k, *_ in members]), device=device)
                 for name in starts[0]},
                lambda step: (x[own, rows[step]], y[own, rows[step]]),
                optimizer=update_rules.Adam([step_size for *_, step_size in members]),
                steps=self.steps,
                record=lambda p: {"mask": p["mask"]},
                record_at=(self.steps,),
                project=lambda p: p["mask"].clamp_(0.0, 1.0),
                schedule=update_rules.cosine(self.steps),
                progress=progress,
            ).parameters  # fmt: skip
            read = []
            for i, (k, *_) in enumerate(members):
                one = {name: p[i : i + 1] for name, p in trained.items()}
                error = (predict_deep(one, test[k][None])[0] - truth[k]).square().mean().item()
                read.append((error, largest_gradient_correlation(one, test[k], truth[k])))
        losses, correlations = np.array(read).T.reshape(2, len(seeds), len(self.sizes), len(MODELS), -1)
        axes = ("seed", "size", "model", "step_size")
        return {"test_loss": (axes, losses), "correlation": (axes, correlations)}

    def _data(self, seed: int, device: torch.device) -> list[Tensor]:
        """Inputs and noisy labels for training, inputs and clean labels for the test; clean labels have variance 1."""
        rng = stream(seed, "deep teacher")
        teacher = draw_deep(self.n_inputs, [self.teacher_width] * 2, rng=rng, n_relevant=self.n_relevant)
        relevant = rng.choice(self.n_inputs, self.n_relevant, replace=False)
        teacher["mask"] = np.isin(np.arange(self.n_inputs), relevant) * 1.0
        stacked = {name: torch.from_numpy(array)[None] for name, array in teacher.items()}

        def draw(purpose: str, count: int) -> tuple[np.ndarray, np.ndarray]:
            inputs = np.sqrt(3) * stream(seed, "deep", purpose).uniform(-1, 1, (count, self.n_inputs))  # variance 1
            return inputs, predict_deep(stacked, torch.from_numpy(inputs)[None])[0].numpy()

        scale = draw("scale", 20_000)[1].std()
        (x, y), (test, truth) = draw("train", self.sizes[-1]), draw("test", self.n_test)
        noise = self.noise * stream(seed, "deep noise").standard_normal(len(x))
        return [to_tensor(array, device=device) for array in (x, y / scale + noise, test, truth / scale)]

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare the models, each at its best step size, with equal samples and with half of the baseline's."""
        best = at_best_step_size(data)
        judged, half = (best.sel(size=n) for n in (self.judged_size, self.judged_size // 2))
        return {
            "GA-G1-three-layers": {
                "baseline": judged.test_loss.sel(model="baseline"),
                "attention": judged.test_loss.sel(model="attention"),
                "l1_attention_half_the_samples": half.test_loss.sel(model="l1_attention"),
                "correlation": judged.correlation.min("model"),
            }
        }


def draw_deep(
    n_inputs: int, widths: Sequence[int], *, rng: np.random.Generator, n_relevant: int | None = None
) -> dict[str, np.ndarray]:
    """Return a network without member axis: a mask of ones, weights of variance 2 / fan-in, half of it in the last.

    ``widths`` are those of the hidden layers; ``n_relevant`` inputs count as the first layer's fan-in, by default all.
    """
    sizes = list(pairwise([n_inputs, *widths, 1]))
    drawn = {"mask": np.ones(n_inputs)}
    for k, (below, above) in enumerate(sizes, 1):
        fan_in = n_relevant if k == 1 and n_relevant else below
        drawn[f"layer_{k}"] = rng.standard_normal((above, below)) * np.sqrt((2 if k < len(sizes) else 1) / fan_in)
    return drawn


def predict_deep(parameters: Parameters, inputs: Tensor) -> Tensor:
    """Return the answers ``(members, samples)`` to the inputs ``(members, samples, inputs)`` of each member."""
    *hidden, last = (parameters[f"layer_{k}"].mT for k in range(1, len(parameters)))
    given = inputs * parameters["mask"].unsqueeze(1)
    for weights in hidden:
        given = (given @ weights).relu()
    return (given @ last).squeeze(2)


def largest_gradient_correlation(parameters: Parameters, inputs: Tensor, truth: Tensor) -> float:
    r"""Return the largest correlation, over samples, of the residual with an entry of $\partial f/\partial w^{(k)}$.

    It is an absolute value, for one network (member axis of length 1); entries that do not vary count as uncorrelated.
    """
    layers = {name: weights for name, weights in parameters.items() if name != "mask"}

    def answer(layers: Parameters, sample: Tensor) -> Tensor:
        return predict_deep(layers | {"mask": parameters["mask"]}, sample[None, None]).squeeze()

    slopes = torch.func.vmap(torch.func.grad(answer), (None, 0))(layers, inputs)
    entries = torch.cat([slope.flatten(1) for slope in slopes.values()], 1)
    centred, residual = entries - entries.mean(0), predict_deep(parameters, inputs[None])[0] - truth
    spread = centred.square().mean(0).clamp(min=1e-12).sqrt()
    covariance = (residual - residual.mean()) @ centred / len(inputs)
    return float((covariance / spread / residual.std(correction=0)).abs().max())


def at_best_step_size(data: xr.Dataset) -> xr.Dataset:
    """Keep each model, at each size, at the step size with the smallest median error."""
    return data.isel(step_size=data.test_loss.median("seed").argmin("step_size"))
