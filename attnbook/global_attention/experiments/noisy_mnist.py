"""Figures 2, 4, 5 and 6: does a mask find a small digit in a large image of noise, and does it help?

Of these figures only captions and the sentences about them are in the text available to us, and of their step sizes
only 0.001. Noise, place of the digit, momentum, numbers of images and of steps, and the penalty are this book's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float

from attnbook.core import runtime
from attnbook.core.ensemble import History
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.datasets import Images
from attnbook.global_attention.digit_training import CLASSES, Member, Model, train_members
from attnbook.global_attention.experiments.noisy_mnist_settings import (
    FIGURES,
    MODELS,
    NAMES,
    PANELS,
    PATHS,
    PROGRAMS,
    Panel,
    Settings,
)

__all__ = ["FIGURES", "MODELS", "NAMES", "PANELS", "PATHS", "NoisyMnist", "Panel", "Settings", "run"]

CURVES = ("accuracy", "test_loss", "train_loss")
IN_DECAY = ("baseline", "attention", "l2_baseline", "l1_mask")
IN_SPARSE = ("attention", "group_baseline", "l1_mask", "l1_mask_l2")
ENDS = ("leak", "path_accuracy", "masks", "balance")
# A setting counts when one of the networks has learned: three times as good as guessing.
LEARNS = 0.3
# What a network that diverged is given as its loss.
CEILING = 1e4


@dataclass(frozen=True)
class NoisyMnist(Result):
    r"""Curves of every network, and what the masks of the first seed look like.

    Attributes:
        steps: Steps at which curves were recorded, ``(records,)``.
        accuracy: Share of test images classified rightly, ``(records, seeds, panels, step_sizes, models)``.
        test_loss: Cross-entropy on test images, same shape; 10000 from where a network diverges.
        train_loss: Cross-entropy on 200 of the training images, same shape.
        leak: How strongly a pixel outside the digit enters at the end, on average, relative to one inside,
            ``(seeds, panels, step_sizes, models)``; NaN where a network diverged.
        path_accuracy: Final test accuracy along the penalty paths, ``(seeds, paths, step_sizes, penalties)``.
        weights: How strongly each pixel enters in Figure 2, for the first seed at ``read_at``,
            ``(records, models, pixels)``.
        weights_large: The same at the end for Figures 4 to 6 at ``read_large_at``, ``(figures, models, pixels)``.
        masks: Trained masks of attention and L1-attention in Figure 2 at ``read_at``, ``(seeds, 2, pixels)``.
        balance: What gradient flow would conserve, $a_k^2-\|w^{(1)}_k\|^2$, for attention in Figure 2 at ``read_at``,
            before and after training, ``(seeds, 2, pixels)``.
    """

    experiment: ClassVar[str] = "global_attention.noisy_mnist"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    accuracy: Float[np.ndarray, "records seeds panels step_sizes models"]
    test_loss: Float[np.ndarray, "records seeds panels step_sizes models"]
    train_loss: Float[np.ndarray, "records seeds panels step_sizes models"]
    leak: Float[np.ndarray, "seeds panels step_sizes models"]
    path_accuracy: Float[np.ndarray, "seeds paths path_step_sizes penalties"]
    weights: Float[np.ndarray, "records models pixels"]
    weights_large: Float[np.ndarray, "figures models large_pixels"]
    masks: Float[np.ndarray, "seeds 2 pixels"]
    balance: Float[np.ndarray, "seeds 2 pixels"]

    def curves(self, what: str, panel: str, step_size: float) -> Float[np.ndarray, "records seeds models"]:
        """Return the curves of one panel and step size.

        Args:
            what: ``accuracy``, ``test_loss`` or ``train_loss``.
            panel: One of :data:`PANELS`.
            step_size: One of those in the settings.

        Returns:
            The curves of all seeds and models.
        """
        return getattr(self, what)[:, :, self._panel(panel), self.settings.step_sizes.index(step_size)]

    def best(self, panel: str) -> Float[np.ndarray, "seeds models"]:
        """Return the final accuracies of each model at its own best step size, the one with the highest median."""
        final = self.accuracy[-1, :, self._panel(panel)]
        return np.stack([final[:, i, j] for j, i in enumerate(self._best_indices(panel))], axis=1)

    def best_step_sizes(self, panel: str) -> dict[Model, float]:
        """Return the step size at which :meth:`best` reads each model."""
        chosen = self._best_indices(panel)
        return {model: self.settings.step_sizes[i] for model, i in zip(MODELS, chosen, strict=True)}

    def lead(self, model: Model = "attention", over: Model = "baseline") -> Float[np.ndarray, "panels step_sizes"]:
        """Return the median accuracy of a model minus that of another; NaN where neither has learned."""
        ahead, behind = (np.median(self.accuracy[-1, ..., MODELS.index(m)], axis=0) for m in (model, over))
        return np.where(np.maximum(ahead, behind) >= LEARNS, ahead - behind, np.nan)

    def ahead_in_every_seed(self) -> Bool[np.ndarray, "panels step_sizes"]:
        """Return where attention ends with a higher accuracy than the baseline in each seed, a paired comparison."""
        return np.all(self.accuracy[-1, ..., 1] > self.accuracy[-1, ..., 0], axis=0)

    def steps_to_loss(self, what: str, panel: str) -> Float[np.ndarray, "seeds models"]:
        """Return after how many steps baseline and attention reach a loss, each at its own best step size.

        The training loss is half of that of guessing, log(10). The test loss, of which networks reach less, is halfway
        from guessing to the lowest that both reach in this seed.

        Args:
            what: ``train_loss`` or ``test_loss``.
            panel: One of :data:`PANELS`.

        Returns:
            Steps, between two records on a line; the last step for a network that never gets there.
        """
        chosen, guessing = self._best_indices(panel)[:2], np.log(CLASSES)
        loss = np.stack([getattr(self, what)[:, :, self._panel(panel), i, j] for j, i in enumerate(chosen)], axis=-1)
        reached = loss.min(axis=0).max(axis=-1) if what == "test_loss" else np.zeros(loss.shape[1])
        targets = (guessing + reached) / 2
        return np.array([[_first(self.steps, -c, -t) for c in of.T] for of, t in _by_seed(loss, targets)])

    def measurements(self) -> dict[str, Measurement]:
        """Return what the figures say, by claim id."""
        s = self.settings
        final = self.curves("accuracy", "figure_2", s.read_at)[-1]
        lowest = self.curves("test_loss", "figure_2", s.read_at).min(axis=0)
        leads = self.lead()[np.isfinite(self.lead())]
        speed = {what: self.steps_to_loss(f"{what}_loss", "figure_2") for what in ("train", "test")}
        equal = self._at_equal_training_loss()
        plain, best, best_of_path = self.best("uniform_plain"), self.best("figure_2"), self.best_of_paths()
        leak = self.leak[:, self._panel("figure_2"), s.step_sizes.index(s.read_at)]
        measured = {
            "GA-F2-accuracy-attention": over_seeds(baseline=final[:, 0], attention=final[:, 1]),
            "GA-F2-accuracy-l1": over_seeds(attention=final[:, 1], l1_attention=final[:, 2]),
            "GA-F2-loss": over_seeds(baseline=lowest[:, 0], attention=lowest[:, 1]),
            "GA-F2-speed": over_seeds(
                **{f"{what}_{m}": speed[what][:, j] for what in speed for j, m in enumerate(MODELS[:2])}
            ),
            "GA-F2-every": Measurement(
                {
                    "fraction_held": float((leads > 0.01).mean()) if leads.size else 0.0,
                    "settings": float(leads.size),
                    "not_counted": float(self.lead().size - leads.size),
                },
                n_seeds=len(s.seeds),
            ),
            "GA-F2-uniform": over_seeds(baseline=plain[:, 0], attention=plain[:, 1]),
            "GA-X-digits-tuned": over_seeds(**{model: best[:, j] for j, model in enumerate(MODELS)}),
            "GA-X-digits-equal": over_seeds(baseline=equal[:, 0], attention=equal[:, 1]),
            "GA-X-digits-leak": over_seeds(**{model: leak[:, j] for j, model in enumerate(MODELS)}),
            "GA-X-digits-decay": over_seeds(**{name: best_of_path[name] for name in IN_DECAY}),
            "GA-X-digits-sparse": over_seeds(**{name: best_of_path[name] for name in IN_SPARSE}),
        }
        if s.images == "mnist":
            measured["GA-F2-mnist"] = over_seeds(**{model: final[:, j] for j, model in enumerate(MODELS)})
        for figure in FIGURES:
            end = self.curves("accuracy", figure, s.read_large_at)[-1]
            claim = f"GA-F{figure.removeprefix('figure_')}"
            steps = self.steps_to_loss("test_loss", figure)
            measured[claim] = over_seeds(
                baseline=end[:, 0], attention=end[:, 1], steps_baseline=steps[:, 0], steps_attention=steps[:, 1]
            )
        return measured

    def _at_equal_training_loss(self) -> Float[np.ndarray, "seeds models"]:
        """Accuracy where the training loss is first the baseline's final one; at the end if it never is."""
        accuracy, loss = (self.curves(what, "figure_2", self.settings.read_at) for what in ("accuracy", "train_loss"))
        target = -np.log(loss[-1, :, 0])
        rows = []
        for (of_seed, t), curve in zip(_by_seed(-np.log(loss), target), np.moveaxis(accuracy, 1, 0), strict=True):
            reached = [_first(self.steps, falling, t) for falling in of_seed.T]
            rows.append([np.interp(step, self.steps, curve[:, j]) for j, step in enumerate(reached)])
        return np.array(rows)

    def best_of_paths(self) -> dict[str, Float[np.ndarray, " seeds"]]:
        """Return the best final accuracies of each path, by its name, and of two models without a penalty.

        The best has the highest median over seeds, of all strengths and step sizes; no penalty counts as a point of
        each path too.
        """
        without = self.best("figure_2")
        best = {"baseline": without[:, 0], "attention": without[:, 1]}
        for i, (name, path) in enumerate(PATHS.items()):
            start = best["baseline" if path.model == "baseline" else "attention"]
            points = np.column_stack([start, self.path_accuracy[:, i].reshape(len(start), -1)])
            best[name] = points[:, np.median(points, axis=0).argmax()]
        return best

    def _best_indices(self, panel: str) -> tuple[int, ...]:
        return tuple(np.median(self.accuracy[-1, :, self._panel(panel)], axis=0).argmax(axis=0).tolist())

    @staticmethod
    def _panel(name: str) -> int:
        return list(PANELS).index(name)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> NoisyMnist:
    """Train all networks of Figures 2, 4, 5 and 6, of the controls and of the penalty paths.

    Args:
        settings: Images, sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result. Networks that diverge are part of it.

    Raises:
        ValueError: If the device is not available or the data set is too small.
        DataError: If MNIST is wanted and cannot be had.
    """
    clock, where, images = Clock(), runtime.device(device), settings.load()

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        return _train(settings, images, seeds, where, inner)

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    curves = concatenate([{name: part[name] for name in CURVES} for part in parts], axis=1)
    ends = concatenate([{name: part[name] for name in ENDS} for part in parts])
    return NoisyMnist(
        settings=settings,
        provenance=clock.provenance(where),
        steps=np.array(settings.record_at, dtype=np.float64),
        weights=parts[0]["weights"],
        weights_large=parts[0]["weights_large"],
        **curves,
        **ends,
    )


def _train(
    settings: Settings, images: Images, seeds: tuple[int, ...], where: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Everything that some seeds contribute."""
    s, n_programs = settings, len(PROGRAMS) + 1
    found: dict[str, list[np.ndarray]] = {}
    weights = {}
    for number, program in enumerate(PROGRAMS):
        members = s.members(program, seeds)
        history = train_members(
            members, images, s.training(program[0]), device=where, progress=_part(progress, number, n_programs)
        )
        shape = (len(s.record_at), len(seeds), len(program), len(s.step_sizes), len(MODELS))
        for name in CURVES:
            found.setdefault(name, []).append(np.minimum(history.records[name], CEILING).reshape(shape))
        entering = history.records["effective_weights"]
        found.setdefault("leak", []).append(_leak(entering[-1], members).reshape(shape[1:]))
        weights[program] = entering.reshape(*shape, -1)[:, 0]
        if program[0] == "figure_2":
            found_masks = _masks(history, members, s)
    path = train_members(
        s.path_members(seeds),
        images,
        replace(s.training("figure_2"), record_at=(s.steps,)),
        device=where,
        progress=_part(progress, n_programs - 1, n_programs),
    )
    small, large = (s.step_sizes.index(size) for size in (s.read_at, s.read_large_at))
    return {
        **{name: np.concatenate(parts, axis=-3) for name, parts in found.items()},
        "path_accuracy": path.records["accuracy"][-1].reshape(
            len(seeds), len(PATHS), len(s.path_step_sizes), len(s.path)
        ),
        **found_masks,
        "weights": np.round(weights[PROGRAMS[0]][:, 0, small], 3),
        "weights_large": np.round([weights[figure,][-1, 0, large] for figure in FIGURES], 3),
    }


def _leak(weights: np.ndarray, members: list[Member]) -> np.ndarray:
    """Mean weight of the pixels outside the digit over that of those inside, of each member."""
    inside = np.stack([m.scene.patch for m in members]) == 1
    known = np.where(np.isfinite(weights).all(axis=1, keepdims=True), weights, np.nan)
    return known.mean(axis=1, where=~inside) / known.mean(axis=1, where=inside)


def _masks(history: History, members: list[Member], settings: Settings) -> dict[str, np.ndarray]:
    """Trained masks of Figure 2, and what each entry has kept of the balance with its weights."""
    scene, read_at = PANELS["figure_2"].scene, settings.read_at
    mask, hidden = (history.parameters[name].cpu().double().numpy() for name in ("mask", "hidden"))
    mine = {
        model: [i for i, m in enumerate(members) if (m.model, m.scene, m.step_size) == (model, scene, read_at)]
        for model in MODELS[1:]
    }
    free = mine["attention"]
    start = 1.0 - history.records["effective_weights"][0, free] ** 2  # masks start at ones
    end = mask[free] ** 2 - np.square(hidden[free]).sum(axis=1)
    return {
        "masks": np.round(np.stack([mask[mine[model]] for model in MODELS[1:]], axis=1), 3),
        "balance": np.round(np.stack([start, end], axis=1), 3),
    }


def _by_seed(curves: np.ndarray, target: np.ndarray) -> zip[tuple[np.ndarray, np.float64]]:
    """(records, models) and target of each seed."""
    return zip(np.moveaxis(curves, 1, 0), target, strict=True)


def _first(steps: np.ndarray, rising: np.ndarray, target: float) -> float:
    """The step at which a curve first reaches a value, on the line between two records; the last one if never."""
    there = np.flatnonzero(rising >= target)
    if not there.size:
        return float(steps[-1])
    i = there[0]
    if i == 0:
        return float(steps[0])
    share = (target - rising[i - 1]) / (rising[i] - rising[i - 1])
    return float(steps[i - 1] + share * (steps[i] - steps[i - 1]))


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, parts * total)
