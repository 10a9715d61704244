"""The experiments of the chapter: optimisers of the attention matrices on film reviews and on images.

The attention matrices are trained by mirror descent or Adam, everything else by the same Adam, from the same starts and
on the same batches; so differences between optimisers of equal seed are paired. All optimisers have equally many step
sizes. The book's size needs no files: synthetic reviews and small digits. Real data are the size ``full``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core import ensemble
from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment, stacked
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, share
from attnbook.core.settings import check_sizes
from attnbook.data import Source
from attnbook.mirror_descent.real_text_and_images import baselines, comparison, measures, patches, reviews
from attnbook.mirror_descent.real_text_and_images.attention_rule import AttentionRule
from attnbook.mirror_descent.real_text_and_images.comparison import OPTIMIZERS, Rates
from attnbook.mirror_descent.real_text_and_images.patches import N_CLASSES, ImageSource
from attnbook.mirror_descent.real_text_and_images.reviews import LastWords
from attnbook.mirror_descent.real_text_and_images.transformer import (
    ATTENTION,
    Inputs,
    Shape,
    attention_names,
    draw_parameters,
)

EDGES = np.geomspace(1e-6, 1.0, 25)  # bounds of the bins of the histograms, in sizes over the largest of the matrix
MATRICES = [*ATTENTION, "all"]
ADAM, MIRROR = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), (0.001, 0.003, 0.01, 0.03, 0.1)
GRID: Rates = (ADAM, ADAM, MIRROR, MIRROR, tuple(rate / 10 for rate in MIRROR))
THREE: Rates = tuple(own[1:4] for own in GRID)
PIXEL_PENALTIES = (3e-5, 1e-4, 3e-4, 1e-3)
RUNS = ("optimizer", "rate", "seed")

Parts = Callable[[], Iterator[Inputs]]


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """Every optimiser at every step size and seed. Equal places of step sizes of mirror descent are comparable."""

    rates: Rates = THREE  # of each optimiser, in the order of OPTIMIZERS
    compared: int = 1  # place of the step sizes at which histograms are taken
    batch_size: int = 50
    records: int = 4  # times that accuracies are taken, evenly spaced
    width: int = 32
    n_heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        comparison.configurations(self.rates)
        if not 0 <= self.compared < len(self.rates[0]):
            raise ValueError(f"compared: expected a place among {len(self.rates[0])} step sizes, got {self.compared}")
        check_sizes(self, "batch_size", "records", "width", "n_heads")

    def coordinates(self) -> dict[str, Any]:
        """Name optimisers, places of step sizes, records, matrices and bins."""
        places = list(range(len(self.rates[0])))
        names = {"optimizer": list(OPTIMIZERS), "rate": places, "record": list(range(1, self.records + 1))}
        return names | {"matrix": MATRICES, "size": EDGES[:-1].tolist()}

    def _train(
        self,
        shape: Shape,
        seeds: tuple[int, ...],
        device: torch.device,
        batches: Callable[[int], Inputs],
        *,
        steps: int,
        noise: Callable[[int], Parameters] | None = None,
        validation: Parts,
        test: Parts,
        progress: Progress | None,
    ) -> tuple[Parameters, Arrays]:
        """Return networks of every configuration from every seed's start, accuracies at records, and sparsity.

        Gradients are cut to length 1. Batches have one group per seed. Noise for the attention matrices takes the place
        of their gradients, with the length that these had.
        """
        pairs = [(name, rate) for name, rate in comparison.configurations(self.rates) for _ in seeds]
        start = draw_parameters(shape, seeds, len(pairs) // len(seeds), device=str(device))
        asking = to_tensor([float(name != "uniform") for name, _ in pairs], device=device)
        queries = [name for name in start if name.startswith(ATTENTION[0])]
        gradient = comparison.clipped_gradient(shape, asking=asking)
        exponents = [comparison.OPTIMIZERS[name] for name, _ in pairs]
        history = ensemble.train(
            comparison.drowned(gradient) if noise else gradient,
            start | {name: start[name] * asking.view(-1, 1, 1) for name in queries},
            (lambda step: (batches(step), noise(step))) if noise else batches,
            optimizer=AttentionRule(attention_names(shape), [rate for _, rate in pairs], exponents),
            steps=steps,
            record=lambda parameters: {
                "validation_accuracy": comparison.accuracy(parameters, shape, validation()),
                "test_accuracy": comparison.accuracy(parameters, shape, test()),
            },
            record_at=[steps * k // self.records for k in range(1, self.records + 1)],
            on_divergence="record",
            progress=progress,
        )
        trained = history.parameters
        found: Arrays = {name: (("record", *RUNS), self._split(a, seeds, 1)) for name, a in history.records.items()}
        for name, values in comparison.sparsity(trained, shape).items():
            found[name] = ("matrix", *RUNS), self._split(values.T, seeds, 1)
        found["diverged"] = RUNS, self._split(history.diverged, seeds)
        return trained, found

    def _split(self, values: np.ndarray, seeds: tuple[int, ...], axis: int = 0) -> np.ndarray:
        """Split the axis of members into optimisers, step sizes and seeds."""
        members = len(OPTIMIZERS), len(self.rates[0]), len(seeds)
        return values.reshape(*values.shape[:axis], *members, *values.shape[axis + 1 :])


@dataclass(frozen=True, kw_only=True)
class Reviews(Comparison):
    """One layer whose class token reads the last words of a review.

    Cases: ``many`` reviews; ``few`` reviews; and ``noise``, many reviews with noise of the same length in the place of
    the gradients of the attention matrices. Word vectors are frozen.
    """

    id = "mirror_descent.reviews"
    summary = "Film reviews: accuracy beside baselines, sparsity and attention of five ways to train attention"
    smoke = {
        "n_words": 100, "n_tokens": 12, "width": 8, "n_train": 40, "n_few": 20, "n_validation": 20, "n_test": 30,
        "n_read": 20, "steps": 3, "few_steps": 3, "batch_size": 10, "records": 2, "rates": tuple(r[:2] for r in THREE),
        "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {
        "reviews": "imdb", "n_words": 30_000, "n_tokens": 200, "width": 100, "n_train": 22_500, "n_few": 500,
        "n_validation": 2500, "n_test": 25_000, "n_read": 5000, "steps": 2250, "few_steps": 400, "batch_size": 100,
        "records": 10, "rates": GRID, "compared": 3, "cases": ("many", "few", "noise"),
        "seeds": tuple(range(10)), "chunk": 10,
    }  # fmt: skip

    reviews: Source = "synthetic"  # or imdb
    vectors: str = "imdb_word2vec_100d"  # word vectors for imdb; those of synthetic reviews are trained on them
    cases: tuple[str, ...] = ("many", "few", "noise")
    n_words: int = 300  # known words, the most frequent ones
    n_tokens: int = 40  # last words of a review that are read
    n_train: int = 1800
    n_few: int = 100  # training reviews of the case few, drawn anew for each seed
    n_validation: int = 200
    n_test: int = 1000
    n_read: int = 500  # test reviews on which attention is measured
    steps: int = 180  # 5 epochs
    few_steps: int = 40  # of the case few

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cases or set(self.cases) - {"many", "few", "noise"}:
            raise ValueError(f"cases: expected some of many, few and noise, got {self.cases}")

    def read(self) -> LastWords:
        """Return the reviews; refused where there are too few, or none on this machine."""
        sizes = {"n_words": self.n_words, "n_tokens": self.n_tokens, "dimension": self.width}
        found = reviews.load_reviews(self.reviews, self.vectors, **sizes)
        if self.n_train + self.n_validation > len(found.train) or max(self.n_test, self.n_read) > len(found.test):
            raise ValueError(f"n_train, n_validation, n_test, n_read: too few of {self.reviews} for {self}")
        return found

    def coordinates(self) -> dict[str, Any]:
        """Name cases and baselines, too."""
        return super().coordinates() | {"case": list(self.cases), "baseline": list(baselines.TEXT_BASELINES)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all cases one after the other."""
        found, n = self.read(), len(self.cases)
        each = (self._case(case, found, seeds, device, share(progress, k, n)) for k, case in enumerate(self.cases))
        real = found.test[: self.n_read]
        share_of_words = found.polar[real].sum(axis=1) / np.maximum((real > 0).sum(axis=1), 1)
        return stacked("case", each) | {"uniform_mass": ((), share_of_words.mean())}

    def _case(
        self, case: str, found: LastWords, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> Arrays:
        steps, n_train = (self.few_steps, self.n_few) if case == "few" else (self.steps, self.n_train)
        subsets = [self.n_validation + stream(s, "training reviews").permutation(self.n_train)[:n_train] for s in seeds]
        shape = Shape("frozen", self.width, self.n_tokens, width=self.width, n_heads=self.n_heads)
        ordered = [
            own[comparison.epoch_order(n_train, steps, self.batch_size, stream(s, "batches"))]
            for s, own in zip(seeds, subsets, strict=True)
        ]
        streams = [stream(s, "noise") for s in seeds]

        def noise(_: int) -> Parameters:
            drawn = np.stack([s.standard_normal((len(ATTENTION), self.width, self.width), np.float32) for s in streams])
            return dict(zip(attention_names(shape), torch.tensor(drawn, device=device).unbind(1), strict=True))

        def parts(split: str, part: slice) -> Iterator[tuple[Inputs, Tensor]]:
            tokens, labels = getattr(found, split)[part], getattr(found, f"{split}_labels")[part]
            return reviews.parts(found, tokens, labels, device=device)

        trained, arrays = self._train(
            shape,
            seeds,
            device,
            reviews.batches(found, np.stack(ordered), device=device),
            steps=steps,
            noise=noise if case == "noise" else None,
            validation=lambda: (inputs for inputs, _ in parts("train", slice(self.n_validation))),
            test=lambda: (inputs for inputs, _ in parts("test", slice(self.n_test))),
            progress=progress,
        )
        attended = comparison.attended_words(trained, shape, parts("test", slice(self.n_read)))
        arrays |= {name: (RUNS, self._split(values, seeds)) for name, values in attended.items()}
        arrays["histogram"] = ("optimizer", "seed", "matrix_alone", "size"), self._histograms(trained, shape, seeds)
        return arrays | {"baseline_accuracy": (("baseline", "seed"), self._baselines(case, found, subsets))}

    def _histograms(self, trained: Parameters, shape: Shape, seeds: tuple[int, ...]) -> np.ndarray:
        """How many entries of each matrix have which size, as shares, at the step sizes compared; NaN for no size."""
        sizes = self._split(comparison.scaled_matrices(trained, shape), seeds)[:, self.compared]
        counted = np.array([np.histogram(m.clip(EDGES[0]), EDGES)[0] for m in sizes.reshape(-1, *sizes.shape[-2:])])
        return (counted / sizes[0, 0, 0].size).reshape(*sizes.shape[:3], -1)

    def _baselines(self, case: str, found: LastWords, subsets: list[np.ndarray]) -> np.ndarray:
        """Test accuracies of logistic regression for ``many`` and ``few``, once where all have the same reviews."""
        table = np.full((len(baselines.TEXT_BASELINES), len(subsets)), np.nan)
        for column, own in enumerate(subsets if case in ("many", "few") else ()):
            if column and len(own) == self.n_train:
                table[:, column] = table[:, 0]
                continue
            own = np.sort(own)
            apart = slice(self.n_validation)
            splits = [found.train[own], found.train[apart], found.test[: self.n_test]]
            labels = [found.train_labels[own], found.train_labels[apart], found.test_labels[: self.n_test]]
            features = baselines.text_features(splits, found.vectors)
            table[:, column] = [baselines.logistic_regression(features[n], labels) for n in baselines.TEXT_BASELINES]
        return table

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the claims of the cases that are there."""
        found: dict[str, dict[str, xr.DataArray]] = {}
        for case, read in {"many": self._many, "few": self._few, "noise": self._noise}.items():
            if case in data.case:
                found |= read(data.sel(case=case, drop=True))
        if {"many", "noise"} <= set(data.case.values):
            whole = data.effective_dimension.sel(case="many", matrix="all", drop=True)
            unmatched = whole.sel(optimizer="p2").isel(rate=-1) - whole.sel(optimizer="p1_1").isel(rate=0)
            found["MD-hist-noise"] |= {"unmatched": unmatched, "unmatched_upper": -_lower(-unmatched)}
        return found

    def _many(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        accuracy, lead = measures.tuned(data), measures.lead_of_attention(data)
        compared = data.isel(rate=self.compared)
        whole = data.effective_dimension.sel(matrix="all", drop=True)
        near_zero = measures.order(-compared.near_zero.sel(matrix=["query", "key", "value"]))
        _, curve, explained = measures.words_by_entropy(data)
        gain, gain_over_p3 = _more(accuracy), _more(accuracy, "p3")
        attention, hits, corrected = (_more(x) for x in (compared.mass, compared.top, curve.isel(rate=self.compared)))
        dimension = whole.isel(rate=self.compared)
        order = measures.order(dimension)
        return {
            "MD-imdb": {"gain": gain, "gain_over_p3": gain_over_p3, **lead}
            | {"least_gain_lower": xr.concat([_lower(gain), _lower(gain_over_p3)], "rival").min()},
            "MD-imdb-tie": {**lead, "largest_difference": measures.largest_difference(data)},
            "MD-hist": measures.by_exponent(dimension) | {"near_zero_lower": near_zero["dimension_lower"], **order},
            "MD-tok": {"attention_gain": attention, "attention_gain_lower": _lower(attention)}
            | {"hit_rate_gain": hits, "hit_rate_gain_lower": _lower(hits)},
            "MD-tok-sharp": {"corrected_gain": corrected, "corrected_gain_upper": -_lower(-corrected)}
            | {"explained": xr.DataArray(explained)},
        }

    def _few(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        fall, lead = measures.moved_by_step_size(data), measures.lead_of_attention(data)
        _, lower, _ = measures.interval(fall)
        least = {"fall": fall.isel(optimizer=fall.mean("seed").argmin("optimizer")), "fall_lower": lower.min()}
        return {"MD-imdb-rate": {**least, "largest_difference": measures.largest_difference(data), **lead}}

    def _noise(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        whole = data.effective_dimension.sel(matrix="all", drop=True)
        order, fastest = measures.order(whole), whole.isel(rate=-1)
        limits = {
            f"from_limit_{p}": fastest.sel(optimizer=p) - measures.noise_limit(float(p[1:])) for p in ("p2", "p3")
        }
        dimensions = measures.by_exponent(whole.isel(rate=self.compared))
        return {"MD-hist-noise": {**dimensions, **limits} | order}


@dataclass(frozen=True, kw_only=True)
class Images(Comparison):
    """A small vision transformer: patches of an image, read by a class token after layers in which all tokens ask."""

    id = "mirror_descent.images"
    summary = "Images: accuracy beside baselines and sparsity of five ways to train attention"
    smoke = {
        "width": 8, "n_train": 40, "n_validation": 10, "n_apart": 5, "n_test": 12, "steps": 3, "batch_size": 8,
        "records": 2, "rates": tuple(r[:2] for r in THREE), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    full = {
        "images": "cifar10", "patch": 4, "width": 64, "n_layers": 2, "n_train": 7000, "n_validation": 1000,
        "n_apart": 2000, "n_test": 1000, "moved": 3, "mirrored": True, "steps": 2800, "batch_size": 100, "records": 10,
        "rates": GRID, "compared": 3, "seeds": tuple(range(10)), "chunk": 10,
    }  # fmt: skip

    images: ImageSource = "digits"  # or cifar10
    patch: int = 2  # side of a patch in pixels
    n_train: int = 1000
    n_validation: int = 200
    n_apart: int = 237  # further test images, from the training images
    n_test: int = 360
    moved: int = 0  # training images are moved by up to so many pixels, anew in each batch
    mirrored: bool = False  # whether left and right of a training image may be exchanged
    n_layers: int = 1
    steps: int = 400

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks; the baseline is logistic regression on the pixels."""
        sizes = {name: getattr(self, name) for name in ("n_train", "n_validation", "n_apart", "n_test")}
        found, cut = patches.load_images(self.images, **sizes), self.patch
        side, channels = found["train"].images.shape[2:]
        inputs = cut * cut * channels, (side // cut) ** 2, N_CLASSES
        shape = Shape("projected", *inputs, self.width, self.n_heads, self.n_layers)
        size = self.steps, self.batch_size
        rows = np.stack([comparison.epoch_order(self.n_train, *size, stream(s, "batches")) for s in seeds])
        moves = np.stack([self._moves(stream(s, "moves")) for s in seeds])
        _, arrays = self._train(
            shape,
            seeds,
            device,
            patches.batches(found["train"], cut, rows, moves, device=device),
            steps=self.steps,
            validation=lambda: patches.parts(found["validation"], cut, device=device),
            test=lambda: patches.parts(found["test"], cut, device=device),
            progress=progress,
        )
        pixels = [split.images.reshape(len(split.labels), -1) for split in found.values()]
        linear = baselines.logistic_regression(pixels, [split.labels for split in found.values()], PIXEL_PENALTIES)
        return arrays | {"baseline_accuracy": ((), linear)}

    def _moves(self, rng: np.random.Generator) -> np.ndarray:
        size = self.steps, self.batch_size
        both = rng.integers(-self.moved, self.moved + 1, size=(*size, 2))
        return np.concatenate([both, rng.integers(1 + self.mirrored, size=(*size, 1))], axis=-1)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off sparsity at all step sizes and, of CIFAR-10, accuracy and sparsity at each optimiser's choice."""
        whole = data.effective_dimension.sel(matrix="all", drop=True)
        order = measures.order(whole)
        matched = measures.by_exponent(whole.isel(rate=self.compared))
        found = {"MD-vit-matched": matched | order}
        if self.images != "cifar10":
            return found
        accuracy, chosen = measures.tuned(data), measures.choice(data)["rate"]
        behind, sparser = _more(accuracy.sel(optimizer=["adam", "p1_1"]), "p1_1", "adam"), whole.isel(rate=chosen)
        denser = sparser.sel(optimizer="p1_1") - sparser.sel(optimizer="adam")
        lead = measures.lead_of_attention(data)
        return found | {
            "MD-vit": {"behind_adam": behind, "behind_adam_upper": -_lower(-behind), **lead},
            "MD-vit-sparse": {"denser_than_adam": denser, "denser_than_adam_upper": -_lower(-denser)},
        }


def _more(values: xr.DataArray, other: str = "p2", one: str = "p1_1") -> xr.DataArray:
    """Paired differences of one optimiser to another."""
    return values.sel(optimizer=one, drop=True) - values.sel(optimizer=other, drop=True)


def _lower(differences: xr.DataArray) -> xr.DataArray:
    """Lower end of the interval of the mean."""
    return measures.interval(differences)[1]
