"""The paper's guidelines on penalties (Section 3.4, Appendix D) as curves: test error against penalty strength.

Penalties on the weights and on the mask are tried on the networks of Section 4.1, penalties on attention weights on
recurrent attention with one step. The paper has no experiment on these guidelines; all of this is the book's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from jaxtyping import Float, Int

from attnbook.core import runtime
from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate, share
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, predict, train_members
from attnbook.global_attention.recurrent_gradient import Penalty, penalty_and_gradient
from attnbook.global_attention.word_training import Task, WordMember, WordSetup, train_reader

__all__ = ["L2_MODELS", "PENALTIES", "Guidelines", "Settings", "run"]

L2_MODELS: tuple[Model, ...] = ("baseline", "attention")
PENALTIES: tuple[Penalty, ...] = ("entropy", "l1_scores")
"""Penalties on attention that have an effect; the third, ``l1_weights``, is constant."""
PROGRAMS = 1 + len(PENALTIES)
"""Programs in which a group of seeds is trained."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_inputs: Number of inputs of the networks with a mask.
        sparsities: Relevant inputs of a sparse and of a dense teacher.
        outputs: Labels per sample.
        teacher_width: Hidden units of all teachers.
        width: Hidden units of all networks.
        noise: Standard deviation of the label noise; the clean labels have 1.
        n_samples: Training samples.
        n_test: Held-out samples.
        penalties: Weights of the L2 penalty on both layers and of the L1 penalty on the mask, increasing.
        step_size: Step size of Adam for the networks with a mask, falling to zero along a cosine.
        batch_size: Samples per step.
        steps: Number of steps.
        n_words: Words of a sentence.
        dimension: Entries of a word.
        sharpness: Standard deviation of the scores of a peaked and of a spread teacher of sentences.
        n_sentences: Training sentences.
        strengths: Weights of the penalties on attention, increasing.
        word_step_size: Step size of Adam for recurrent attention, the best of three without a penalty on other seeds.
        word_steps: Number of steps there.
        seeds: Seeds.
        chunk: Seeds trained together as one program.
    """

    n_inputs: int = 32
    sparsities: tuple[int, int] = (4, 32)
    outputs: int = 10
    teacher_width: int = 8
    width: int = 32
    noise: float = 0.5
    n_samples: int = 500
    n_test: int = 1000
    penalties: tuple[float, ...] = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    step_size: float = 5e-3
    batch_size: int = 64
    steps: int = 1000
    n_words: int = 10
    dimension: int = 6
    sharpness: tuple[float, float] = (6.0, 0.5)
    n_sentences: int = 200
    strengths: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    word_step_size: float = 0.01
    word_steps: int = 400
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    chunk: int = 6

    def __post_init__(self) -> None:
        for name in ("penalties", "strengths"):
            values = getattr(self, name)
            if len(values) < 2 or sorted(set(values)) != list(values) or values[0] <= 0:
                raise ValueError(f"{name}: expected at least two increasing positive numbers, got {values}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=30, n_test=40, penalties=(1e-4, 1e-2), steps=4, n_sentences=30, strengths=(1e-2, 1.0),
            word_steps=4, seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            n_inputs=128, sparsities=(16, 128), width=64, n_samples=2000, n_test=10_000, steps=6000, n_words=20,
            dimension=12, n_sentences=800, word_steps=4000, seeds=tuple(range(10)), chunk=1,
        )  # fmt: skip


@dataclass(frozen=True)
class Guidelines(Result):
    """Test errors in units of the label variance, against clean labels.

    Attributes:
        l2_loss: With an L2 penalty on both layers, ``(seeds, sparsities, models, penalties)``.
        l2_train_loss: The same networks on their noisy training labels.
        l1_loss: With an L1 penalty on the mask, ``(seeds, sparsities, penalties)``.
        free_loss: Baseline and mask without a penalty, ``(seeds, sparsities, models)``.
        free_train_loss: The same networks on their noisy training labels.
        attention_loss: With a penalty on attention weights, ``(seeds, teachers, kinds, strengths)``; teachers are
            peaked and spread, kinds are :data:`PENALTIES`.
        free_attention_loss: Without a penalty, ``(seeds, teachers)``.
    """

    experiment: ClassVar[str] = "global_attention.guidelines"
    settings_type: ClassVar[type] = Settings

    l2_loss: Float[np.ndarray, "seeds sparsities models penalties"]
    l2_train_loss: Float[np.ndarray, "seeds sparsities models penalties"]
    l1_loss: Float[np.ndarray, "seeds sparsities penalties"]
    free_loss: Float[np.ndarray, "seeds sparsities models"]
    free_train_loss: Float[np.ndarray, "seeds sparsities models"]
    attention_loss: Float[np.ndarray, "seeds teachers kinds strengths"]
    free_attention_loss: Float[np.ndarray, "seeds teachers"]

    def chosen(self, sparsity: int, model: int) -> Int[np.ndarray, " seeds"]:
        """Return the place of the L2 weight that the guideline picks, in each seed.

        "As large as possible while in-sample prediction stays good" is read as: the largest weight whose training error
        is at most the variance of the label noise; the smallest where none is.

        Args:
            sparsity: 0 for the sparse teacher, 1 for the dense one.
            model: Place in :data:`L2_MODELS`.

        Returns:
            Places in the list of penalties.
        """
        good = self.l2_train_loss[:, sparsity, model] <= self.settings.noise**2
        return np.where(good, np.arange(good.shape[1]), 0).max(1)

    def by_guideline(self, sparsity: int, model: int) -> Float[np.ndarray, " seeds"]:
        """Return the test error at the L2 weight that the guideline picks."""
        at = self.chosen(sparsity, model)[:, None]
        return np.take_along_axis(self.l2_loss[:, sparsity, model], at, axis=1)[:, 0]

    @property
    def n_networks(self) -> int:
        """Number of networks that were trained; those without a penalty on attention once for each kind of penalty."""
        losses = (self.free_loss, self.l2_loss, self.l1_loss, self.attention_loss)
        return sum(loss.size for loss in losses) + len(PENALTIES) * self.free_attention_loss.size

    @property
    def n_programs(self) -> int:
        """Number of batched programs they were trained in, for one group of seeds."""
        return PROGRAMS

    def measurements(self) -> dict[str, Measurement]:
        """Return what each penalty does to whom, by claim id."""
        found = {
            "GA-X-l2-guideline": over_seeds(
                guideline=self.by_guideline(0, 1),
                free=self.free_loss[:, 0, 1],
                best=self.l2_loss[:, 0, 1].min(-1),
            ),
            "GA-X-l2-dense": over_seeds(
                guideline=self.by_guideline(1, 1),
                free=self.free_loss[:, 1, 1],
                best=self.l2_loss[:, 1, 1].min(-1),
            ),
            "GA-X-l1-hurts": _against_free(("sparse", "dense"), self.l1_loss, self.free_loss[:, :, 1]),
        }
        for penalty, name in {"entropy": "GA-X-entropy-helps", "l1_scores": "GA-X-l1-scores"}.items():
            losses = self.attention_loss[:, :, PENALTIES.index(penalty)]
            found[name] = _against_free(("peaked", "spread"), losses, self.free_attention_loss)
        found["GA-X-entropy-hurts"] = found["GA-X-entropy-helps"]
        return found | {"GA-X-l1-constant": Measurement(_largest_gradients())}


def _against_free(
    teachers: tuple[str, str],
    losses: Float[np.ndarray, "seeds teachers strengths"],
    free: Float[np.ndarray, "seeds teachers"],
) -> Measurement:
    """Errors over those without a penalty: the strength with the smallest median ratio, and the largest strength."""
    measured, shares = {}, {}
    for j, teacher in enumerate(teachers):
        ratios = losses[:, j] / free[:, j, None]
        measured[f"best_{teacher}"] = ratios[:, np.median(ratios, axis=0).argmin()]
        measured[f"strongest_{teacher}"] = ratios[:, -1]
        shares[f"helped_{teacher}"] = float((measured[f"best_{teacher}"] < 1).mean())
    found = over_seeds(**measured)
    return Measurement({**found.values, **shares}, found.spread, found.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Guidelines:
    """Train along all penalties.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    parts = by_seeds(settings, partial(_train, settings, where), clock=clock, workdir=workdir, progress=progress)
    return Guidelines(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _train(
    s: Settings, device: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    arrays = _train_masks(s, device, seeds, share(progress, 0, PROGRAMS))
    paths = [
        _train_attention(s, device, seeds, penalty, share(progress, 1 + i, PROGRAMS))
        for i, penalty in enumerate(PENALTIES)
    ]
    return arrays | {
        "attention_loss": np.stack([path[..., 1:] for path in paths], axis=2),
        "free_attention_loss": paths[0][..., 0],
    }


def _train_masks(
    s: Settings, device: torch.device, seeds: Sequence[int], progress: Progress | None
) -> dict[str, np.ndarray]:
    """Networks without a penalty, along the L2 weights, and along the L1 weights."""
    setup = Setup(s.n_inputs, s.outputs, s.teacher_width, s.width, s.noise, s.n_test)
    training = Training(s.steps, s.batch_size, s.step_size, (s.steps,), decay=True)
    members = []
    for seed in seeds:
        for k in s.sparsities:
            members += [Member(model, seed, s.n_samples, k) for model in L2_MODELS]
            members += [
                Member(model, seed, s.n_samples, k, weight_penalty=w) for model in L2_MODELS for w in s.penalties
            ]
            members += [Member("l1_attention", seed, s.n_samples, k, penalty=w) for w in s.penalties]
    history = train_members(members, setup, training, device=device, progress=progress)
    losses = {
        "loss": history.records["test_loss"][-1],
        "train_loss": _train_losses(members, setup, history.parameters),
    }
    few, many = len(L2_MODELS), len(s.penalties)
    found = {}
    for name, values in losses.items():
        rows = values.reshape(len(seeds), len(s.sparsities), -1)
        found[f"free_{name}"] = rows[..., :few]
        found[f"l2_{name}"] = rows[..., few : few + few * many].reshape(*rows.shape[:2], few, many)
        found[f"l1_{name}"] = rows[..., few + few * many :]
    del found["l1_train_loss"]
    return found


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


def _train_attention(
    s: Settings, device: torch.device, seeds: Sequence[int], penalty: Penalty, progress: Progress | None
) -> np.ndarray:
    """One-step attention along the strengths of a penalty, the first of them zero: ``(seeds, teachers, strengths)``."""
    setup = WordSetup(s.n_words, s.dimension, s.teacher_width, s.width, s.n_test)
    training = Training(s.word_steps, s.batch_size, s.word_step_size, (s.word_steps,), decay=True)
    members = [
        WordMember(Task("attention", sharpness, s.noise), seed, s.n_sentences, strength)
        for seed in seeds
        for sharpness in s.sharpness
        for strength in (0.0, *s.strengths)
    ]
    trained = train_reader("one_step", members, setup, training, device=device, penalty=penalty, progress=progress)
    return trained.test_loss[-1].reshape(len(seeds), len(s.sharpness), -1)


def _largest_gradients() -> dict[str, float]:
    """The largest entry of each penalty's gradient at random scores, in float64."""
    logits = to_tensor(2 * stream(0, "scores").standard_normal((1, 50, 11)), dtype=torch.float64)
    return {name: float(penalty_and_gradient(name, logits)[1].abs().max()) for name in get_args(Penalty)}
