r"""What a mask is worth on data of your own: six small networks, tuned alike, at equal steps and equal training loss.

All six are $z = w^{(2)}\phi(w^{(1)}(x\odot a) + b^{(1)}) + b^{(2)}$ with $\phi=\mathrm{ReLU}$ on the cross-entropy, for
samples of tokens $x$ `(tokens, dimension)`; they differ in the mask $a$, one number per token, and in what they read:

=====================  ==========================================================================================
model                  what is special
=====================  ==========================================================================================
``baseline``           mask fixed at ones: no attention
``mask``               mask trained from ones (equation (1) of the paper)
``l1_mask``            penalty $\lambda\sum_k|a_k|$ on the trained mask (Section 5.1)
``group_penalty``      no mask; penalty $\lambda\sum_k\|w^{(1)}_k\|$ on the first-layer weights of each token
``uniform_attention``  every token replaced by the mean of all: attention that cannot attend
``mean_pooling``       the mean of all tokens alone: a bag of words
=====================  ==========================================================================================

The last two tell attention from pooling, the fourth tells it from sparsity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import ensemble, runtime, update_rules
from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.settings import check_sizes, check_types
from attnbook.core.tables import Measured, Table, spread
from attnbook.global_attention.batches import initial_network
from attnbook.global_attention.digit_training import shrink_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MODELS", "Comparison", "compare"]

MODELS = ("baseline", "mask", "l1_mask", "group_penalty", "uniform_attention", "mean_pooling")
PENALISED = ("l1_mask", "group_penalty")
MOMENTUM = 0.9
RECORDS = 60


@dataclass(frozen=True)
class _Plan:
    """How everything is trained; the arguments of :func:`compare`."""

    width: int
    steps: int
    batch_size: int
    step_sizes: tuple[float, ...]
    penalties: tuple[float, ...]
    held_out: float
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        check_types(self)
        check_sizes(self, "width", "steps", "batch_size")
        for name in ("step_sizes", "penalties"):
            if not getattr(self, name) or not all(0 < one < float("inf") for one in getattr(self, name)):
                raise ValueError(f"{name}: expected positive numbers, got {getattr(self, name)}")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out: expected a share above 0 and below 0.5, got {self.held_out}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds: expected different whole numbers of at least 0, got {self.seeds}")

    def candidates(self, model: str) -> list[tuple[float, float]]:
        """Step sizes with penalties; every model has every step size, those without a penalty have penalty 0."""
        return [(s, p) for s in self.step_sizes for p in (self.penalties if model in PENALISED else (0.0,))]


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found."""

    #: Of the chosen candidates the curves ``train_loss``, ``validation_accuracy`` and ``accuracy`` (test part),
    #: ``(model, seed, record)``; ``accuracy_at_steps`` after the last step; ``accuracy_at_loss`` and
    #: ``baseline_at_loss`` where the model and the baseline reach ``common_loss``, the lowest training loss that both
    #: reach, each ``(model, seed)``; the chosen ``step_size`` and ``penalty`` ``(model,)``
    data: xr.Dataset

    def figure(self) -> Figure:
        """Draw test accuracy against steps and against the training loss; bands are the range over seeds."""
        from matplotlib import pyplot as plt

        from attnbook.core.figures import LOOKS, Look, band, style

        looks = {
            "baseline": LOOKS["baseline"],
            "mask": LOOKS["attention"],
            "l1_mask": LOOKS["l1_attention"],
            "group_penalty": Look("group penalty, no mask", "#7c3aed", ":", "D"),
            "uniform_attention": Look("uniform attention", "#15803d", (0, (5, 1)), "v"),
            "mean_pooling": Look("mean pooling", "#111111", (0, (1, 1)), "x"),
        }
        with style():
            figure, (by_step, by_loss) = plt.subplots(1, 2, figsize=(9.6, 3.8), sharey=True)
            for model in MODELS:
                one, look = self.data.sel(model=model), looks[model]
                accuracy = 100 * one.accuracy.transpose("seed", "record").values
                band(by_step, one.step.values, accuracy, look)
                order = np.argsort(one.train_loss.median("seed").values)
                by_loss.plot(one.train_loss.median("seed")[order], np.median(accuracy, 0)[order], **look.line_style())
            by_loss.set(xscale="log", xlabel="training loss (medians)")
            by_loss.invert_xaxis()
            by_step.set(xscale="symlog", xlabel="steps", ylabel="test accuracy (%)")
            by_step.legend(fontsize=9)
        return figure

    def table(self) -> Table:
        """Return accuracies at equal steps and at equal training loss, a row for each model."""
        rows: list[list[str | Measured]] = []
        for model in MODELS:
            one = self.data.sel(model=model)
            penalty = f"{float(one.penalty):g}" if model in PENALISED else "none"
            accuracies = [one.accuracy_at_steps, one.accuracy_at_loss, one.baseline_at_loss]
            chosen = map(Measured, (f"{float(one.step_size):g}", penalty))
            rows.append([model.replace("_", " "), *(spread(100 * each, ".1f") for each in accuracies), *chosen])
        readings = ("after the last step", "at equal training loss", "the baseline there")
        caption = (
            f"Test accuracy in %, median [smallest, largest] over {self.data.sizes['seed']} seeds; equal training loss "
            "is the lowest that model and baseline both reach; step size and penalty by validation accuracy."
        )
        return Table(["model", *readings, "step size", "penalty"], rows, caption)


def compare(
    inputs: Any,
    labels: Any,
    *,
    width: int = 32,
    steps: int = 600,
    batch_size: int = 64,
    step_sizes: Sequence[float] = (0.02, 0.1, 0.3),
    penalties: Sequence[float] = (1e-4, 1e-3, 1e-2),
    held_out: float = 0.2,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return what the mask adds to pooling and to sparsity on your data: data set, figure and table of six networks.

    Each seed splits the samples into a training, a validation and a test part, scales them by one mean and one standard
    deviation of the training part, and draws weights and batches, the same for all models. For each model the step size
    and penalty with the highest median validation accuracy count. Test accuracy is read after the last step and, as
    a model that trains faster is then further on, where it and the baseline have come to the same training loss.

    Args:
        inputs: ``(samples, features)``, each feature a token with one entry, or ``(samples, tokens, dimension)``;
            anything that NumPy understands.
        labels: Class of each sample, ``(samples,)``: numbers or texts.
        width: Hidden units.
        steps: Steps of gradient descent with momentum 0.9.
        batch_size: Samples per step, drawn with replacement.
        step_sizes: Step sizes to choose from; default those of the chapter on noisy digits, rounded.
        penalties: Weights to choose from, for both penalised models.
        held_out: Share of the validation part, and of the test part.
        seeds: Seeds of split, weights and batches.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (work done, work in all).

    Raises:
        ValueError: If an argument has the wrong shape or a value outside its range: NaN or infinity among the inputs,
            one class only, fewer samples than classes, too few samples to split.
        TypeError: If a setting has the wrong type.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> images, classes = load_digits(return_X_y=True)
        >>> found = compare(images[:300], classes[:300], steps=20, seeds=(0,), step_sizes=(0.1,), penalties=(1e-3,))
        >>> found.data.accuracy_at_steps.sizes["model"]
        6
    """
    plan = _Plan(width, steps, batch_size, tuple(step_sizes), tuple(penalties), held_out, tuple(seeds))
    tokens, classes = _checked(inputs, labels, plan)
    where = runtime.device(device)
    parts = [_split(tokens, classes, plan, seed) for seed in plan.seeds]
    found = []
    for number, model in enumerate(MODELS):
        found.append(_train(model, parts, int(classes.max()) + 1, plan, where))
        if progress:
            progress(number + 1, len(MODELS))
    return Comparison(_at_equal_loss(xr.concat(found, "model").assign_coords(model=list(MODELS))))


def _checked(inputs: Any, labels: Any, plan: _Plan) -> tuple[np.ndarray, np.ndarray]:
    """Samples as ``(samples, tokens, dimension)`` and classes as numbers from 0."""
    try:
        tokens = np.asarray(inputs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"inputs: expected an array of numbers: {error}") from error
    if tokens.ndim not in (2, 3) or 0 in tokens.shape:
        raise ValueError(
            f"inputs: expected (samples, features) or (samples, tokens, dimension), none empty, got {tokens.shape}"
        )
    bad = int((~np.isfinite(tokens)).sum())
    if bad:
        raise ValueError(f"inputs: {bad} of {tokens.size} entries are NaN or infinite; fill or drop them first")
    found = np.asarray(labels)
    if found.shape != (len(tokens),):
        raise ValueError(f"labels: expected one class for each of {len(tokens)} samples, got shape {found.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError("labels: some are NaN or infinite; drop these samples first")
    names, classes = np.unique(found, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"labels: all are {names[0]!r}; expected at least two classes")
    if len(tokens) < len(names):
        raise ValueError(
            f"labels: {len(tokens)} samples are fewer than {len(names)} classes; are these numbers classes?"
        )
    held = int(plan.held_out * len(tokens))
    if held < 2 or len(tokens) - 2 * held < len(names):
        raise ValueError(f"inputs: {len(tokens)} samples are too few to hold out a share of {plan.held_out:g} twice")
    return (tokens[:, :, None] if tokens.ndim == 2 else tokens), classes


Part = tuple[np.ndarray, np.ndarray]


def _split(tokens: np.ndarray, classes: np.ndarray, plan: _Plan, seed: int) -> dict[str, Part]:
    """The three parts of a seed, in the units of its training part."""
    order, held = stream(seed, "split").permutation(len(tokens)), int(plan.held_out * len(tokens))
    rows = {"validation": order[:held], "test": order[held : 2 * held], "train": order[2 * held :]}
    mean, spread = tokens[rows["train"]].mean(), tokens[rows["train"]].std()
    if spread == 0:
        raise ValueError("inputs: all entries of the training part are equal")
    return {name: ((tokens[those] - mean) / spread, classes[those]) for name, those in rows.items()}


def _reads(model: str, tokens: np.ndarray) -> np.ndarray:
    """What a model sees of samples ``(seeds, samples, tokens, dimension)``, the last two exchanged."""
    mean = tokens.mean(2, keepdims=True)
    seen = {"uniform_attention": np.broadcast_to(mean, tokens.shape), "mean_pooling": mean}.get(model, tokens)
    return seen.swapaxes(2, 3)


def _scores(parameters: Parameters, inputs: Tensor) -> Tensor:
    """Scores ``(seeds, candidates, samples, classes)`` on inputs ``(seeds, samples, dimension, tokens)``."""
    each = {name: tensor.unflatten(0, (len(inputs), -1)) for name, tensor in parameters.items()}
    weights = each["hidden"] * each["mask"][:, :, None, None] if "mask" in each else each["hidden"]
    side_by_side = inputs.flatten(2) @ weights.flatten(3).flatten(1, 2).mT  # all candidates of a seed in one product
    hidden = side_by_side.unflatten(2, weights.shape[1:3]).transpose(1, 2) + each["hidden_bias"].unsqueeze(2)
    return hidden.relu() @ each["decoder"].mT + each["decoder_bias"].unsqueeze(2)


def _losses(scores: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy of each member."""
    which = classes[:, None, :, None].expand(-1, scores.shape[1], -1, -1)
    return -scores.log_softmax(3).gather(3, which).mean((2, 3)).flatten()


def _train(
    model: str, parts: Sequence[dict[str, Part]], n_classes: int, plan: _Plan, where: torch.device
) -> xr.Dataset:
    """Train all candidates of a model on all seeds, in this order, as one program; keep the best on validation."""
    data = {}
    for name in ("train", "validation", "test"):
        tokens, labels = (np.stack(values) for values in zip(*(part[name] for part in parts), strict=True))
        data[name] = to_tensor(_reads(model, tokens), device=where), torch.as_tensor(labels, device=where)
    inputs, classes = data["train"]
    candidates = plan.candidates(model)
    step_sizes, penalties = map(list, zip(*candidates * len(plan.seeds), strict=True))
    members = [seed for seed in plan.seeds for _ in candidates]
    start = _start(model, members, inputs.shape[2:], plan.width, n_classes)
    shape = (plan.steps, plan.batch_size)
    drawn = np.stack([stream(seed, "batches").integers(inputs.shape[1], size=shape) for seed in plan.seeds])
    rows, of_seed = torch.as_tensor(drawn, device=where), torch.arange(len(plan.seeds), device=where).unsqueeze(1)
    weight = to_tensor(penalties, device=where)
    # With momentum a constant gradient moves the weights this many steps' way.
    lengths = weight * to_tensor(step_sizes, device=where) / (1 - MOMENTUM)

    def shrink(parameters: Parameters) -> None:
        shrink_columns(parameters["hidden"].flatten(1, 2), lengths)  # a column for each token, as a view

    def loss(parameters: Parameters, batch: Tensor) -> Tensor:
        found = _losses(_scores(parameters, inputs[of_seed, batch]), classes[of_seed, batch])
        return found + weight * parameters["mask"].abs().sum(1) if model == "l1_mask" else found

    def record(parameters: Parameters) -> dict[str, Tensor]:
        scores = {name: _scores(parameters, seen) for name, (seen, _) in data.items()}
        right = {name: (z.argmax(3) == data[name][1].unsqueeze(1)).to(inputs).mean(2) for name, z in scores.items()}
        return {
            "train_loss": _losses(scores["train"], data["train"][1]),
            "validation_accuracy": right["validation"].flatten(),
            "accuracy": right["test"].flatten(),
        }

    with threads(1):
        history = ensemble.train(
            ensemble.autograd(loss),
            {name: to_tensor(array, device=where) for name, array in start.items()},
            lambda step: rows[:, step],
            optimizer=update_rules.SGD(step_sizes, momentum=MOMENTUM),
            steps=plan.steps,
            record=record,
            record_at=log_spaced(plan.steps, RECORDS),
            project=shrink if model == "group_penalty" else None,
            on_divergence="record",
        )
    sizes = (-1, len(plan.seeds), len(candidates))
    axes = ("record", "seed", "candidate")
    found = {name: xr.DataArray(values.reshape(sizes), dims=axes) for name, values in history.records.items()}
    best = int(found["validation_accuracy"][-1].median("seed").values.argmax())  # of equal ones the first
    curves = xr.Dataset(found, coords={"step": ("record", history.steps), "seed": list(plan.seeds)})
    return curves.isel(candidate=best).assign(step_size=candidates[best][0], penalty=candidates[best][1])


def _start(model: str, members: list[int], shape: torch.Size, width: int, n_classes: int) -> dict[str, np.ndarray]:
    """As for the other networks of this room, the mask of ones for each token."""
    start = initial_network(members, shape.numel(), width, n_classes)
    mask, start["hidden"] = start.pop("mask")[:, : shape[1]], start["hidden"].reshape(len(members), width, *shape)
    return start | {"mask": mask} if model in ("mask", "l1_mask") else start


def _at_equal_loss(curves: xr.Dataset) -> xr.Dataset:
    """Add the accuracies after the last step and where a model and the baseline have come to the same training loss."""
    lowest = curves.train_loss.min("record")
    common = np.maximum(lowest, lowest.sel(model="baseline", drop=True))

    def reached(one: xr.Dataset) -> xr.DataArray:
        axes = [["record"], ["record"], []]
        return xr.apply_ufunc(_at_loss, one.train_loss, one.accuracy, common, input_core_dims=axes, vectorize=True)

    return curves.assign(
        accuracy_at_steps=curves.accuracy.isel(record=-1, drop=True),
        accuracy_at_loss=reached(curves),
        baseline_at_loss=reached(curves.sel(model="baseline", drop=True)),
        common_loss=common,
    )


def _at_loss(loss: np.ndarray, accuracy: np.ndarray, target: float) -> float:
    """Accuracy where a falling loss first comes down to a target, between two records along a straight line."""
    return float(np.interp(-target, -np.minimum.accumulate(loss), accuracy))
