"""The paper's guidelines on penalties (Section 3.4, Appendices B and D) as curves: test error against strength.

Penalties on the layers and on the mask are tried on the networks of Section 4.1, penalties on attention and on all of
its weights on recurrent attention with one step. The paper has no experiment on these guidelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.resuming import share
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, predict, train_members
from attnbook.global_attention.recurrent_gradient import Penalty
from attnbook.global_attention.word_training import Task, WordMember, WordSetup, train_reader

__all__ = ["PENALTIES", "Guidelines", "chosen"]

NETWORKS: tuple[Model, ...] = ("baseline", "attention")
PENALTIES: tuple[Penalty, ...] = ("entropy", "l1_scores", "l2_weights")  # "l1_weights" is constant: nothing to train
TEACHERS = ("peaked", "spread")
PROGRAMS = 2 + len(PENALTIES)


@dataclass(frozen=True, kw_only=True)
class Guidelines(Experiment):
    """Errors against clean labels in units of their variance, and on noisy training labels."""

    id = "global_attention.guidelines"
    summary = "Guidelines: error against the strength of penalties on weights, mask and attention"
    budget_seconds = 40
    smoke: ClassVar[Mapping[str, Any]] = {
        "n_samples": 30, "n_test": 40, "penalties": (1e-4, 1e-2), "steps": 4, "n_sentences": 30,
        "strengths": (1e-2, 1.0), "word_steps": 4, "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large: ClassVar[Mapping[str, Any]] = {
        "n_inputs": 128, "sparsities": (16, 128), "width": 64, "n_samples": 2000, "n_test": 10_000, "steps": 6000,
        "n_words": 20, "dimension": 12, "n_sentences": 800, "word_steps": 4000, "seeds": tuple(range(10)), "chunk": 1,
    }  # fmt: skip

    n_inputs: int = 32  # of the networks with a mask
    sparsities: tuple[int, int] = (4, 32)  # relevant inputs of a sparse and of a dense teacher
    outputs: int = 10  # labels per sample
    teacher_width: int = 8  # hidden units of all teachers
    width: int = 32  # hidden units of all networks
    noise: float = 0.5  # standard deviation of the label noise; the clean labels have 1
    n_samples: int = 500  # training samples
    n_test: int = 1000  # held-out samples
    penalties: tuple[float, ...] = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # L2 on layers, L1 on the mask; increasing
    step_size: float = 5e-3  # of Adam for the networks with a mask, falling to zero along a cosine
    batch_size: int = 64  # samples per step
    steps: int = 1000  # there
    n_words: int = 10  # words of a sentence
    dimension: int = 6  # entries of a word
    sharpness: tuple[float, float] = (6.0, 0.5)  # standard deviation of the scores of a peaked and a spread teacher
    n_sentences: int = 200  # training sentences
    strengths: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # of the penalties on attention, increasing
    word_step_size: float = 0.01  # of 0.01, 0.03 and 0.1 the best without a penalty on seeds 10 to 15
    word_steps: int = 400  # there
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    chunk: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("penalties", "strengths"):
            values = getattr(self, name)
            if len(values) < 2 or sorted(set(values)) != list(values) or values[0] <= 0:
                raise ValueError(f"{name}: expected at least two increasing positive numbers, got {values}")

    def coordinates(self) -> dict[str, Any]:
        """Name teachers, networks, kinds of penalty and strengths."""
        return {
            "sparsity": ["sparse", "dense"], "network": list(NETWORKS), "penalty": list(self.penalties),
            "teacher": list(TEACHERS), "kind": list(PENALTIES), "strength": list(self.strengths),
        }  # fmt: skip

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train along all penalties."""
        masked = self._masks(seeds, device, share(progress, 0, PROGRAMS))
        paths = [
            self._attention(seeds, device, penalty, share(progress, 1 + i, PROGRAMS))
            for i, penalty in enumerate(PENALTIES)
        ]
        shrunk, fitted = self._shrunk(seeds, device, share(progress, PROGRAMS - 1, PROGRAMS))
        axes = ("seed", "teacher")
        return masked | {
            "attention_loss": ((*axes, "kind", "strength"), np.stack([path[..., 1:] for path in paths], axis=2)),
            "free_attention_loss": (axes, paths[0][..., 0]),
            "l2_attention_loss": ((*axes, "penalty"), shrunk),
            "l2_attention_train_loss": ((*axes, "penalty"), fitted),
        }

    def _masks(self, seeds: Sequence[int], device: torch.device, progress: Progress | None) -> Arrays:
        """Networks without a penalty, along the L2 weights, and along the L1 weights."""
        setup = Setup(self.n_inputs, self.outputs, self.teacher_width, self.width, self.noise, self.n_test)
        training = Training(self.steps, self.batch_size, self.step_size, (self.steps,), decay=True)
        n, members = self.n_samples, []
        for seed in seeds:
            for k in self.sparsities:
                members += [Member(model, seed, n, k) for model in NETWORKS]
                members += [Member(model, seed, n, k, weight_penalty=w) for model in NETWORKS for w in self.penalties]
                members += [Member("l1_attention", seed, n, k, penalty=w) for w in self.penalties]
        history = train_members(members, setup, training, device=device, progress=progress)
        test = history.records["test_loss"][-1].reshape(len(seeds), len(self.sparsities), -1)
        train = _train_losses(members, setup, history.parameters).reshape(test.shape)
        free, l2 = len(NETWORKS), len(NETWORKS) * len(self.penalties)
        axes, shape = ("seed", "sparsity"), (*test.shape[:2], len(NETWORKS), len(self.penalties))
        return {
            "free_loss": ((*axes, "network"), test[..., :free]),
            "l2_loss": ((*axes, "network", "penalty"), test[..., free : free + l2].reshape(shape)),
            "l2_train_loss": ((*axes, "network", "penalty"), train[..., free : free + l2].reshape(shape)),
            "l1_loss": ((*axes, "penalty"), test[..., free + l2 :]),
        }

    def _attention(
        self, seeds: Sequence[int], device: torch.device, penalty: Penalty, progress: Progress | None
    ) -> np.ndarray:
        """One-step attention along the strengths of a penalty, the first of them zero."""
        options = [{"strength": strength} for strength in (0.0, *self.strengths)]
        return self._train(seeds, device, options, penalty, progress)[0]

    def _shrunk(
        self, seeds: Sequence[int], device: torch.device, progress: Progress | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One-step attention with an L2 penalty on all of its weights: errors on new and on training sentences."""
        return self._train(seeds, device, [{"weight_penalty": w} for w in self.penalties], "entropy", progress)

    def _train(
        self,
        seeds: Sequence[int],
        device: torch.device,
        options: Sequence[dict[str, Any]],
        penalty: Penalty,
        progress: Progress | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        setup = WordSetup(self.n_words, self.dimension, self.teacher_width, self.width, self.n_test)
        training = Training(self.word_steps, self.batch_size, self.word_step_size, (self.word_steps,), decay=True)
        members = [
            WordMember(Task("attention", sharpness, self.noise), seed, self.n_sentences, **option)
            for seed in seeds for sharpness in self.sharpness for option in options
        ]  # fmt: skip
        found = train_reader("one_step", members, setup, training, device=device, penalty=penalty, progress=progress)
        shape = (len(seeds), len(self.sharpness), len(options))
        return found.test_loss[-1].reshape(shape), found.train_loss.reshape(shape)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Return what each penalty does to whom: errors, and errors over those without a penalty."""
        with_mask = {name: data[name].sel(network="attention") for name in ("l2_loss", "l2_train_loss", "free_loss")}
        layers: dict[str, xr.DataArray] = {}
        attention: dict[str, xr.DataArray] = {}
        for name in ("sparse", "dense"):
            test, train, free = (values.sel(sparsity=name) for values in with_mask.values())
            layers |= self._guided(name, test, train, free)
        for name in TEACHERS:
            test, train = (data[f"l2_attention_{what}"].sel(teacher=name) for what in ("loss", "train_loss"))
            attention |= self._guided(name, test, train, data.free_attention_loss.sel(teacher=name))
        ratios = (data.attention_loss / data.free_attention_loss).transpose("kind", "teacher", "seed", "strength")
        on_mask = (data.l1_loss / with_mask["free_loss"]).rename(penalty="strength").transpose("sparsity", "seed", ...)
        peaked, spread = (ratios.sel(teacher=name) for name in TEACHERS)
        return {
            "GA-G1-l2-mask": layers,
            "GA-G1-l2-attention": attention,
            "GA-G1-dense": along("sparse", on_mask[0]) | along("dense", on_mask[1]),
            "GA-G1-sparse-attention": along("entropy", peaked.sel(kind="entropy")),
            "GA-X-attention-penalties": {
                name: value for kind in PENALTIES for name, value in along(kind, spread.sel(kind=kind)).items()
            },
        }

    def _guided(
        self, name: str, test: xr.DataArray, train: xr.DataArray, free: xr.DataArray
    ) -> dict[str, xr.DataArray]:
        guided = test.isel(penalty=chosen(train, self.noise))
        return {f"guideline_{name}": guided, f"free_{name}": free, f"best_{name}": test.min("penalty")}


def chosen(train_loss: xr.DataArray, noise: float) -> xr.DataArray:
    """Return the place of the L2 weight that "as large as possible, as long as in-sample prediction is nice" picks.

    Read as: the largest weight whose training error is at most the variance of the noise; the smallest where none is.
    """
    places = xr.DataArray(np.arange(train_loss.sizes["penalty"]), dims="penalty")
    return places.where(train_loss <= noise**2, 0).max("penalty").astype(int)


def along(name: str, ratios: xr.DataArray) -> dict[str, xr.DataArray]:
    """Read a path of errors over those without a penalty: at the best median, at the end, and how many seeds gain."""
    best = ratios.isel(strength=ratios.median("seed").argmin("strength"))
    ends = ratios.isel(strength=-1)
    return {f"best_{name}": best, f"strongest_{name}": ends, f"helped_{name}": (best < 1).mean()}


def _train_losses(members: Sequence[Member], setup: Setup, parameters: Parameters) -> np.ndarray:
    """Mean squared error of each network on its noisy training labels."""
    losses = []
    for at, m in enumerate(members):
        inputs = stream(m.seed, "inputs").standard_normal((m.n_samples, setup.n_inputs))
        noise = setup.noise * stream(m.seed, "noise").standard_normal((m.n_samples, setup.outputs))
        labels = to_tensor((setup.teacher(m.seed, m.n_relevant)(inputs) + noise).T)
        own = {name: tensor[at : at + 1].cpu() for name, tensor in parameters.items()}
        losses.append(float((predict(own, to_tensor(inputs[None]))[0] - labels).square().mean()))
    return np.array(losses)
