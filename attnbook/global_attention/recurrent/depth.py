"""Appendix D.2, beyond two layers: does a mask save samples with three layers too, where its assumption holds?

The paper gives the model, the assumption (a gradient that is correlated with the residual) and the direction (fewer
samples than without a mask); it has no experiment. Inputs are bounded and masks lie in [0, 1], as (A1) and (A4) ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads

__all__ = ["MODELS", "Depth", "at_best_step_size", "predict"]

MODELS = ("baseline", "attention", "l1_attention")


class Member(NamedTuple):
    """One network."""

    seed: int
    n_samples: int
    model: str
    step_size: float


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
        members = [Member(*case) for case in product(seeds, self.sizes, MODELS, self.step_sizes)]
        x, y, test, truth = map(torch.stack, zip(*(self._data(seed, device) for seed in seeds), strict=True))
        own = torch.tensor([seeds.index(m.seed) for m in members], device=device)
        drawn = {(s, n): stream(s, "deep batches", n).integers(n, size=(self.steps, self.batch_size))
                 for s in seeds for n in self.sizes}  # fmt: skip
        rows = torch.as_tensor(np.stack([drawn[m.seed, m.n_samples] for m in members], axis=1), device=device)
        starts = {seed: self._draw(stream(seed, "deep start"), self.width, self.n_inputs) for seed in seeds}
        with threads(1):
            trained = ensemble.train(
                self._gradient(members, device),
                {name: to_tensor(np.stack([starts[m.seed][name] for m in members]), device=device)
                 for name in starts[seeds[0]]},
                lambda step: (x[own[:, None], rows[step]], y[own[:, None], rows[step]]),
                optimizer=update_rules.Adam([m.step_size for m in members]),
                steps=self.steps,
                record=lambda p: {"mask": p["mask"]},
                record_at=(self.steps,),
                project=_clamp,
                schedule=update_rules.cosine(self.steps),
                progress=progress,
            ).parameters  # fmt: skip
            read = [
                _read({name: p[i : i + 1] for name, p in trained.items()}, test[k], truth[k]) for i, k in enumerate(own)
            ]
        losses, correlations = np.array(read).T.reshape(2, len(seeds), len(self.sizes), len(MODELS), -1)
        axes = ("seed", "size", "model", "step_size")
        return {"test_loss": (axes, losses), "correlation": (axes, correlations)}

    def _data(self, seed: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs and noisy labels for training, inputs and clean labels for the test; clean labels have variance 1."""
        rng = stream(seed, "deep teacher")
        teacher = self._draw(rng, self.teacher_width, self.n_inputs, fan_in=self.n_relevant)
        teacher["mask"] = (
            np.isin(np.arange(self.n_inputs), rng.choice(self.n_inputs, self.n_relevant, replace=False)) * 1.0
        )
        stacked = {name: torch.as_tensor(array)[None] for name, array in teacher.items()}

        def draw(purpose: str, count: int) -> tuple[np.ndarray, np.ndarray]:
            inputs = np.sqrt(3) * stream(seed, "deep", purpose).uniform(-1, 1, (count, self.n_inputs))  # variance 1
            return inputs, predict(stacked, torch.as_tensor(inputs)[None])[0].numpy()

        (_, scale), (x, y), (test, truth) = (
            draw("scale", 20_000),
            draw("train", self.sizes[-1]),
            draw("test", self.n_test),
        )
        noise = self.noise * stream(seed, "deep noise").standard_normal(len(x))
        y, truth = (y / scale.std() + noise, truth / scale.std())
        return tuple(to_tensor(array, device=device) for array in (x, y, test, truth))  # type: ignore[return-value]

    def _draw(self, rng: np.random.Generator, w: int, p: int, *, fan_in: int | None = None) -> dict[str, np.ndarray]:
        """Weights with variance 2 / fan-in, those of the decoder half of it; a mask of ones."""
        return {
            "mask": np.ones(p),
            "first": rng.standard_normal((w, p)) * np.sqrt(2 / (fan_in or p)),
            "second": rng.standard_normal((w, w)) * np.sqrt(2 / w),
            "decoder": rng.standard_normal(w) / np.sqrt(w),
        }

    def _gradient(self, members: Sequence[Member], device: torch.device) -> ensemble.Gradient:
        trained = to_tensor([float(m.model != "baseline") for m in members], device=device)[:, None]
        penalty = to_tensor([self.penalty * (m.model == "l1_attention") for m in members], device=device)[:, None]
        fitted = ensemble.autograd(lambda p, batch: (predict(p, batch[0]) - batch[1]).square().mean(1))

        def gradient(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
            losses, gradients = fitted(parameters, batch)
            return losses, gradients | {"mask": trained * (gradients["mask"] + penalty * parameters["mask"].sign())}

        return gradient

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare the models, each at its best step size, with equal samples and with half of the baseline's."""
        best = at_best_step_size(data)
        judged = best.test_loss.sel(size=self.judged_size)
        half = best.test_loss.sel(size=self.judged_size // 2)
        correlation = best.correlation.sel(size=self.judged_size).min("model")
        found = {name: judged.sel(model=name) for name in MODELS}
        halves = {f"{name}_half_the_samples": half.sel(model=name) for name in MODELS[1:]}
        return {"GA-G1-three-layers": found | halves | {"correlation": correlation}}


def at_best_step_size(data: xr.Dataset) -> xr.Dataset:
    """Keep each model, at each size, at the step size with the smallest median error."""
    return data.isel(step_size=data.test_loss.median("seed").argmin("step_size"))


def predict(parameters: Parameters, inputs: Tensor) -> Tensor:
    r"""Return $w^{(3)}\phi(w^{(2)}\phi(w^{(1)}(x\odot a)))$ of each member, for its ``(samples, inputs)``."""
    return (_hidden(parameters, inputs)[1] @ parameters["decoder"].unsqueeze(2)).squeeze(2)


def _clamp(parameters: Parameters) -> None:
    parameters["mask"].clamp_(0.0, 1.0)


def _hidden(parameters: Parameters, inputs: Tensor) -> tuple[Tensor, Tensor]:
    first = (inputs @ (parameters["first"] * parameters["mask"].unsqueeze(1)).mT).relu()
    return first, (first @ parameters["second"].mT).relu()


def _read(parameters: Parameters, inputs: Tensor, truth: Tensor) -> tuple[float, float]:
    """The error of one network on new samples, and the largest correlation of a gradient's entry with the residual."""
    first, second = (hidden[0] for hidden in _hidden(parameters, inputs[None]))
    decoder, middle = parameters["decoder"][0], parameters["second"][0]
    residual = second @ decoder - truth
    behind = second.sign() * decoder
    # The gradient of a layer is, for each sample, the product of what comes back to it and of what it is given.
    layers = [
        (torch.ones_like(second[:, :1]), second),
        (behind, first),
        ((behind @ middle) * first.sign(), inputs * parameters["mask"][0]),
    ]
    largest = max(float(_correlations(residual, *layer).abs().max()) for layer in layers)
    return float(residual.square().mean()), largest


def _correlations(u: Tensor, back: Tensor, given: Tensor) -> Tensor:
    """Correlations, over samples, of a residual with all products of a column of ``back`` and one of ``given``."""
    centred, count = u - u.mean(), len(u)
    variances = back.square().mT @ given.square() / count - (back.mT @ given / count).square()
    covariances = (back * centred[:, None]).mT @ given / count
    return covariances / (variances.clamp(min=1e-12) * centred.square().mean()).sqrt()
