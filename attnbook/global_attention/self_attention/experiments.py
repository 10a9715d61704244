"""The experiments of the chapter: Theorem 2 and its remark, and Table 2 with controls that the paper does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook import ledger
from attnbook.core import ensemble, update_rules
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, share, threads
from attnbook.core.settings import check_increasing, check_sizes
from attnbook.data import Source
from attnbook.global_attention.batches import own_errors, rows_of
from attnbook.global_attention.self_attention.review_table import NETWORKS, Bench, ReviewTable, final, lead
from attnbook.global_attention.token_networks import MODELS, Sizes, draw_teacher, initial_parameters, predict

__all__ = ["Imdb", "MadeReviews", "ReviewSteps", "SelfAttention"]

PAPER_SIZES = (875, 1750, 3500, 5250, 7000, 8750, 13_125, 17_500)


@dataclass(frozen=True, kw_only=True)
class SelfAttention(Experiment):
    """Theorem 2: samples from a self-attention teacher, three students of the same width, and a control.

    The paper has no experiment of this kind. The objective is not convex: every student has the same number of
    restarts, and the one with the smallest training loss counts.
    """

    id = "global_attention.self_attention"
    summary = "Theorem 2: students with and without attention on samples of a self-attention teacher"
    budget_seconds = 50
    smoke = {"sizes": (20, 30), "n_test": 50, "steps": 5, "restarts": 2, "wide": (8, 16), "seeds": (0, 1)}

    n_tokens: int = 6  # p of a sample
    dimension: int = 5  # entries t of a token
    n_query: int = 4  # entries of a query, in teacher and student
    n_value: int = 4  # entries of a value, in teacher and student
    teacher_width: int = 8  # hidden units of the teacher
    width: int = 32  # hidden units of every student
    sizes: tuple[int, ...] = (1000, 8000)  # training samples
    n_test: int = 4000  # test samples
    step_size: float = 5e-3  # of Adam, falling to zero along a cosine; the same for all students
    batch_size: int = 64  # samples per step
    steps: int = 800  # of training
    restarts: int = 3  # initial weights tried per student; the smallest training loss counts
    wide: tuple[int, ...] = (32, 512)  # hidden units of flat networks that see no sample twice

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes")
        check_sizes(self, "restarts")
        if len(self.wide) < 2:
            raise ValueError(f"wide: expected at least two widths, got {self.wide}")

    def network(self, width: int) -> Sizes:
        """Return the sizes of a network with this many hidden units."""
        return Sizes(self.n_tokens, self.dimension, self.n_query, self.n_value, width)

    def coordinates(self) -> dict[str, Any]:
        """Name numbers of samples, models and widths."""
        return {"size": list(self.sizes), "model": list(MODELS), "hidden_units": list(self.wide)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all students for all numbers of samples, and flat networks of several widths on fresh samples."""
        samples, axes = Samples(self, seeds, device), ("seed", "size", "model", "restart")
        runs: list[tuple[Any, int, bool]] = [(model, self.width, False) for model in MODELS]
        runs += [("baseline", width, True) for width in self.wide]
        with threads(1):
            losses = [self._train(*run, samples, share(progress, i, len(runs))) for i, run in enumerate(runs)]
        students, wide = losses[: len(MODELS)], np.stack([test for _, test in losses[len(MODELS) :]], 1)
        train, test = (
            np.stack(one, 1).reshape(len(seeds), len(self.sizes), self.restarts, -1)
            for one in zip(*students, strict=True)
        )
        return {
            "train_loss": (axes, train.swapaxes(2, 3)),
            "test_loss": (axes, test.swapaxes(2, 3)),
            "wide_loss": (("seed", "hidden_units"), wide),
            "l1_gradient": ((), l1_gradient_of_softmax()),
        }

    def _train(
        self, model: Any, width: int, fresh: bool, samples: Samples, progress: Progress | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Train one model for all seeds, sizes and restarts together; on fresh samples once for each seed."""
        counts = [(self.sizes[-1], 0)] if fresh else list(product(self.sizes, range(self.restarts)))
        members = [(i, n, restart) for i in range(len(samples.seeds)) for n, restart in counts]
        drawn = [initial_parameters(model, samples.seeds[i], r, self.network(width)) for i, _, r in members]
        seen = [(samples.inputs[i, :n], samples.labels[i, :n]) for i, n, _ in members]
        tested = [(samples.test[0][i], samples.test[1][i]) for i, *_ in members]
        answer = partial(predict, model)
        history = ensemble.train(
            ensemble.autograd(lambda p, batch: (answer(p, batch[0]) - batch[1]).square().mean(1)),
            {name: to_tensor(np.stack([d[name] for d in drawn]), device=samples.device) for name in drawn[0]},
            samples.fresh() if fresh else samples.batch,
            optimizer=update_rules.Adam(self.step_size),
            steps=self.steps,
            record=lambda p: {"train_loss": own_errors(answer, p, seen), "test_loss": own_errors(answer, p, tested)},
            record_at=(self.steps,),
            schedule=update_rules.cosine(self.steps),
            names=[f"{model} (seed {samples.seeds[i]}, {n} samples, restart {r})" for i, n, r in members],
            progress=progress,
        )
        return history.records["train_loss"][-1], history.records["test_loss"][-1]

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare the students at the largest number of samples, and the flat networks among themselves."""
        baseline, mask, attention, uniform = best(data).isel(size=-1).transpose("model", ...)
        flat, wide = {"baseline": baseline, "global_attention": mask}, data.wide_loss
        return {
            "GA-T2-self": flat | {"self_attention": attention},
            "GA-T2-floor": flat,
            "GA-T2-wider": {"narrow": wide.isel(hidden_units=0), "wide": wide.isel(hidden_units=-1)},
            "GA-X-attention-needed": {"uniform_attention": uniform, "self_attention": attention},
            "GA-G1-l1-softmax": {"max_gradient": data.l1_gradient},
        }


class Samples:
    """Training and test samples of a few seeds; all models, sizes and restarts of a seed share them."""

    def __init__(self, experiment: SelfAttention, seeds: tuple[int, ...], device: torch.device) -> None:
        """Draw teachers and samples; a larger number of samples contains the smaller ones."""
        s = self.settings = experiment
        self.seeds, self.device = seeds, device
        self.teachers = [draw_teacher(s.network(s.teacher_width), stream(seed, "teacher")) for seed in seeds]
        self.inputs, self.labels = self._draw("inputs", s.sizes[-1])
        self.test = self._draw("test inputs", s.n_test)

    def _draw(self, what: str, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of each seed."""
        shape = count, self.settings.n_tokens, self.settings.dimension
        inputs = np.stack([stream(seed, what).standard_normal(shape) for seed in self.seeds])
        given = zip(self.teachers, torch.from_numpy(inputs)[:, None], strict=True)
        labels = torch.cat([predict("self_attention", teacher, x) for teacher, x in given])
        return to_tensor(inputs, device=self.device), to_tensor(labels.numpy(), device=self.device)

    @cached_property
    def rows(self) -> Tensor:
        """Draw the rows of all batches, once for all models: ``(steps, seeds * sizes * restarts, batch)``."""
        s = self.settings
        shape, most = (len(s.sizes), s.batch_size), np.array(s.sizes)[:, None]
        drawn = [[stream(seed, "batches", step).random(shape) * most for seed in self.seeds] for step in range(s.steps)]
        rows = np.array(drawn).astype(np.int64) + s.sizes[-1] * np.arange(len(self.seeds))[:, None, None]
        return torch.as_tensor(rows, device=self.device).flatten(1, 2).repeat_interleave(s.restarts, 1)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return one batch per member: seeds, then sizes, then restarts, which share it."""
        rows = self.rows[step]
        return rows_of(self.inputs.flatten(0, 1), rows), self.labels.flatten()[rows]

    def fresh(self) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Return what gives batches of samples that no other step sees, one for each seed."""
        size = self.settings.batch_size
        inputs, labels = self._draw("fresh inputs", self.settings.steps * size)
        return lambda step: (inputs[:, step * size :][:, :size], labels[:, step * size :][:, :size])


def best(data: xr.Dataset) -> xr.DataArray:
    """Return the test error of the restart with the smallest training loss."""
    return data.test_loss.isel(restart=data.train_loss.argmin("restart"))


def l1_gradient_of_softmax(count: int = 11) -> float:
    """Return the largest entry of the gradient of the L1 norm of a softmax, at random logits: rounding alone."""
    logits = torch.from_numpy(stream(0, "logits").standard_normal(count)).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.softmax(logits, 0).abs().sum(), logits)
    return float(gradient.abs().max())


@dataclass(frozen=True, kw_only=True)
class MadeReviews(ReviewTable):
    """Table 2 in miniature, on synthetic reviews that need no data; no claim rests on it, nor does it speak of IMDB."""

    id = "global_attention.made_reviews"
    summary = "Table 2 in miniature and its controls, on synthetic reviews that need no data"
    budget_seconds = 40
    smoke = {
        "dimension": 8, "n_positions": 60, "width": 8, "sizes": (20, 40), "n_test": 30, "epochs": 2, "batch_size": 16,
        "seeds": (0, 1),
    }  # fmt: skip

    reviews: Source = "synthetic"  # those that come with the package
    vectors: str = ""  # trained on the spot
    dimension: int = 24  # entries of a word vector
    n_positions: int = 256  # positions after padding
    width: int = 32  # hidden units
    sizes: tuple[int, ...] = (300, 1200)  # training reviews
    n_test: int = 500  # test reviews
    epochs: int = 4  # fixed
    step_size: float = 3e-3  # of Adam for all but the mean of the word vectors
    batch_size: int = 32  # reviews per step


@dataclass(frozen=True, kw_only=True)
class Imdb(ReviewTable):
    """Table 2: film reviews, a flat network and self-attention, and two controls that show what does the work.

    The paper does not say how it trains; the recipe is ours. Sizes ``book`` and ``full`` need the reviews on this
    machine.
    """

    id = "global_attention.imdb"
    summary = "Table 2 and its controls, on real reviews (needs them: see `attnbook data`)"
    budget_seconds = 60
    smoke = {
        "reviews": "synthetic", "vectors": "", "dimension": 8, "n_positions": 40, "width": 8, "sizes": (6, 12),
        "n_test": 30, "epochs": 1, "batch_size": 16, "seeds": (0, 1),
    }  # fmt: skip
    full = {
        "n_positions": 2142, "width": 256, "sizes": PAPER_SIZES, "n_test": 5000, "seeds": (0, 1, 2, 3, 4), "chunk": 1,
    }  # fmt: skip
    paper_size = True

    seeds: tuple[int, ...] = (0, 1, 2)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the table; a part of it, or other reviews, measure what they can."""
        if self.reviews != "imdb":
            return {}
        found = {"GA-X-pooling": few_reviews(data)} if 875 in self.sizes else {}
        return found if self.sizes != PAPER_SIZES else found | {"GA-TAB2-headline": headline(data)} | table_2(data)


def headline(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Compare self-attention on few reviews with the flat network on many."""
    few, some, many = final(data, "self_attention", 875), final(data, "baseline", 3500), final(data, "baseline", 7000)
    ahead = {"seeds_ahead": (few > many).sum(), "seeds": xr.DataArray(few.sizes["seed"])}
    return {"self_attention_875": few, "baseline_3500": some, "baseline_7000": many, **ahead}


def few_reviews(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the leads over the flat network with 875 reviews: of self-attention, and of the controls."""
    flat, *others = (final(data, network, 875) for network in NETWORKS)
    return {name: x - flat for name, x in zip(("lead", "lead_of_uniform", "lead_of_mean"), others, strict=True)}


def table_2(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    """Compare the cells with the paper's, and self-attention with flat network and control."""
    few = slice(None, 3500)
    ours = {network: final(data, network) for network in ("baseline", "self_attention")}
    cells = {f"{n}_{size}": ours[n].sel(size=size) for n in ours for size in PAPER_SIZES}
    error = [abs(cells[name].median() - value) for name, value in ledger.claim("GA-TAB2").paper_value.items()]
    ahead, gain = lead(data, "baseline"), lead(data, "uniform_attention")
    shape = {f"lead_{size}": ahead.sel(size=size) for size in (875, 3500)}
    gains = {f"gain_{size}": gain.sel(size=size) for size in (13_125, 17_500)}
    drop = (ours["self_attention"] - data.pooled_path).sel(size=17_500)
    return {
        "GA-TAB2": cells | shape | {"largest_error": xr.concat(error, "cell").max()},
        "GA-TAB2-order": {"smallest_lead": ahead.min("size"), "smallest_lead_few": ahead.sel(size=few).min("size")},
        "GA-X-attention-adds": gains | {"gain_few": gain.sel(size=few).max("size"), "drop_17500": drop},
    }


@dataclass(frozen=True, kw_only=True)
class ReviewSteps(ReviewTable):
    """The step sizes of Table 2: each network with a third of its own, with its own, and with three times as much.

    Tried on training reviews that were set apart, with seeds that Table 2 does not use. No claim rests on it.
    """

    id = "global_attention.review_steps"
    summary = "Table 2: each network at three step sizes, on training reviews set apart (needs the reviews)"
    budget_seconds = 60
    smoke = Imdb.smoke | {"sizes": (10,), "factors": (0.3, 1.0)}
    full = {"n_positions": 2142, "width": 256, "seeds": (100, 101), "chunk": 1}

    sizes: tuple[int, ...] = (875,)  # training reviews, besides those set apart
    n_test: int = 2500  # training reviews set apart
    seeds: tuple[int, ...] = (100,)
    factors: tuple[float, ...] = (0.3, 1.0, 3.0)  # by which the step sizes of Table 2 are multiplied

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "factors")

    def coordinates(self) -> dict[str, Any]:
        """Name factors and networks."""
        return {"factor": list(self.factors), "network": list(NETWORKS)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every network with every factor."""
        bench, found = Bench(self, device, held_out=True), []
        for number, factor in enumerate(self.factors, 1):
            moved = {name: round(factor * getattr(self, name), 12) for name in ("step_size", "pooling_step_size")}
            bench.settings = replace(self, **moved)
            each = [[bench.train(seed, self.sizes[0], network) for network in NETWORKS] for seed in seeds]
            found.append([[trained["test_accuracy"][-1] for trained in row] for row in each])
            if progress:
                progress(number, len(self.factors))
        return {"accuracy": (("factor", "seed", "network"), np.array(found))}
