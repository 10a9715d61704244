"""The experiments of the chapter: optimisers of the attention matrices on film reviews and on images.

The attention matrices are trained by mirror descent or Adam, everything else by the same Adam, from the same starts and
on the same batches; so differences between optimisers of equal seed are paired. All optimisers have equally many step
sizes. The book's size needs no files: synthetic reviews and small digits. Real data are the size ``large``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.datasets import Source
from attnbook.mirror_descent import baselines, comparison, patches, reviews
from attnbook.mirror_descent.comparison import OPTIMIZERS, Rates
from attnbook.mirror_descent.patches import ImageSource, Pictures
from attnbook.mirror_descent.real_text_and_images import measures
from attnbook.mirror_descent.reviews import LastWords
from attnbook.mirror_descent.transformer import ATTENTION, Inputs, Shape, attention_names, draw_parameters

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
        for name in ("batch_size", "records", "width", "n_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def coordinates(self) -> dict[str, Any]:
        """Name optimisers, places of step sizes, records, matrices and bins."""
        places = list(range(len(self.rates[0])))
        names = {"optimizer": list(OPTIMIZERS), "rate": places, "record": list(range(1, self.records + 1))}
        return names | {"matrix": MATRICES, "size": EDGES[:-1].tolist()}

    def _train(
        self,
        shape: Shape,
        seeds: tuple[int, ...],
        start: Parameters,
        batches: Callable[[int], Inputs],
        *,
        steps: int,
        noise: Callable[[int], Parameters] | None = None,
        validation: Parts,
        test: Parts,
        progress: Progress | None,
    ) -> tuple[Parameters, Arrays]:
        """Train all configurations; return them, their accuracies at each record, and how sparse they end."""
        history = comparison.train_configurations(
            shape,
            self.rates,
            seeds,
            start,
            batches,
            steps=steps,
            noise=noise,
            record=lambda parameters: {
                "validation_accuracy": comparison.accuracy(parameters, shape, validation()),
                "test_accuracy": comparison.accuracy(parameters, shape, test()),
            },
            record_at=[steps * k // self.records for k in range(1, self.records + 1)],
            progress=progress,
        )
        trained = history.parameters
        found: Arrays = {name: (("record", *RUNS), self._split(a, seeds, 1)) for name, a in history.records.items()}
        for name, values in comparison.sparsity(trained, shape).items():
            found[name] = ("matrix", *RUNS), self._split(values.T, seeds, 1)
        found["diverged"] = RUNS, self._split(history.diverged, seeds)
        right = comparison.right_answers(trained, shape, test()).view(*self._members(seeds), -1)
        other = right[list(OPTIMIZERS).index("p2")]
        found["discordant"] = RUNS, (right != other).float().mean(-1).cpu().numpy()
        return trained, found

    def _members(self, seeds: tuple[int, ...]) -> tuple[int, int, int]:
        return len(OPTIMIZERS), len(self.rates[0]), len(seeds)

    def _split(self, values: np.ndarray, seeds: tuple[int, ...], axis: int = 0) -> np.ndarray:
        """Split the axis of members into optimisers, step sizes and seeds."""
        return values.reshape(*values.shape[:axis], *self._members(seeds), *values.shape[axis + 1 :])

    def _start(self, shape: Shape, seeds: tuple[int, ...], device: torch.device) -> Parameters:
        return draw_parameters(shape, seeds, len(comparison.configurations(self.rates)), device=str(device))


@dataclass(frozen=True, kw_only=True)
class Reviews(Comparison):
    """One layer whose class token reads the last words of a review.

    Cases: ``many`` reviews with frozen word vectors; ``learned``, where the vectors are trained on; ``few`` reviews;
    and ``noise``, where noise of the same length stands in the place of the gradients of the attention matrices.
    """

    id = "mirror_descent.reviews"
    summary = "Film reviews: accuracy beside baselines, sparsity and attention of five ways to train attention"
    smoke = {
        "n_words": 100, "n_tokens": 12, "width": 8, "n_train": 40, "n_few": 20, "n_validation": 20, "n_test": 30,
        "n_read": 20, "steps": 3, "few_steps": 3, "batch_size": 10, "records": 2, "rates": tuple(r[:2] for r in THREE),
        "cases": ("many", "learned", "few", "noise"), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large = {
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
        if not self.cases or set(self.cases) - {"many", "learned", "few", "noise"}:
            raise ValueError(f"cases: expected some of many, learned, few and noise, got {self.cases}")

    def read(self) -> LastWords:
        """Return the reviews.

        Raises:
            DataError: If they are not on this machine.
            ValueError: If there are too few.
        """
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
        each = [self._case(case, found, seeds, device, share(progress, k, n)) for k, case in enumerate(self.cases)]
        arrays: Arrays = {}
        for name, (dims, _) in each[0].items():
            arrays[name] = ("case", *dims), np.stack([np.asarray(one[name][1]) for one in each])
        real = found.test[: self.n_read]
        share_of_words = found.polar[real].sum(axis=1) / np.maximum((real > 0).sum(axis=1), 1)
        return arrays | {"uniform_mass": ((), share_of_words.mean())}

    def _case(
        self, case: str, found: LastWords, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
    ) -> Arrays:
        few, frozen = case == "few", case != "learned"
        steps, n_train = (self.few_steps, self.n_few) if few else (self.steps, self.n_train)
        subsets = [self.n_validation + stream(s, "training reviews").permutation(self.n_train)[:n_train] for s in seeds]
        kind: Literal["frozen", "words"] = "frozen" if frozen else "words"
        size = self.width if frozen else len(found.words)
        shape = Shape(kind, size, self.n_tokens, width=self.width, n_heads=self.n_heads, positions=False)
        start = self._start(shape, seeds, device)
        if not frozen:
            start["words"] = torch.tensor(found.vectors).to(start["words"]).expand_as(start["words"])
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
            return reviews.parts(found, tokens, labels, frozen=frozen, device=device)

        trained, arrays = self._train(
            shape,
            seeds,
            start,
            reviews.batches(found, np.stack(ordered), frozen=frozen, device=device),
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
            table[:, column] = [baselines.logistic_regression(features[n], labels)[0] for n in baselines.TEXT_BASELINES]
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
        if {"many", "learned"} <= set(data.case.values):  # reported, not judged
            learned = data.sel(case="learned", drop=True)
            found["MD-imdb"] |= {"gain_learned": _more(measures.tuned(learned))}
            found["MD-tok"] |= {"attention_gain_learned": _more(learned.mass.isel(rate=self.compared))}
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
            "MD-hist": measures.by_exponent(dimension)
            | {"near_zero_lower": near_zero["lower"], "dimension_lower": order["lower"]}
            | {"share_ordered": order["share_ordered"]},
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
        return {
            "MD-hist-noise": {**dimensions, **limits}
            | {"dimension_lower": order["lower"], "share_ordered": order["share_ordered"]}
        }


@dataclass(frozen=True, kw_only=True)
class Images(Comparison):
    """A small vision transformer: patches of an image, read by a class token after layers in which all tokens ask."""

    id = "mirror_descent.images"
    summary = "Images: accuracy beside baselines and sparsity of five ways to train attention"
    smoke = {
        "width": 8, "n_train": 40, "n_validation": 10, "n_apart": 5, "n_test": 12, "steps": 3, "batch_size": 8,
        "records": 2, "rates": tuple(r[:2] for r in THREE), "seeds": (0, 1), "chunk": 1,
    }  # fmt: skip
    large = {
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

    def read(self) -> Pictures:
        """Return the images.

        Raises:
            DataError: If they are not on this machine.
            ValueError: If there are too few.
        """
        sizes = {name: getattr(self, name) for name in ("n_train", "n_validation", "n_apart", "n_test")}
        return patches.load_images(self.images, **sizes)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks; the baseline is logistic regression on the pixels."""
        found, cut = self.read(), self.patch
        side, channels = found.train.shape[2:]
        shape = Shape(
            "projected",
            cut * cut * channels,
            (side // cut) ** 2,
            len(found.classes),
            self.width,
            self.n_heads,
            self.n_layers,
        )
        size = self.steps, self.batch_size
        rows = np.stack([comparison.epoch_order(self.n_train, *size, stream(s, "batches")) for s in seeds])
        moves = np.stack([self._moves(stream(s, "moves")) for s in seeds])
        _, arrays = self._train(
            shape,
            seeds,
            self._start(shape, seeds, device),
            patches.batches(found, cut, rows, moves, device=device),
            steps=self.steps,
            validation=lambda: patches.parts(found.validation, found.validation_labels, cut, device=device),
            test=lambda: patches.parts(found.test, found.test_labels, cut, device=device),
            progress=progress,
        )
        pixels = [
            getattr(found, split).reshape(-1, side * side * channels) for split in ("train", "validation", "test")
        ]
        labels = [found.train_labels, found.validation_labels, found.test_labels]
        linear, _ = baselines.logistic_regression(pixels, labels, PIXEL_PENALTIES)
        return arrays | {"baseline_accuracy": ((), linear)}

    def _moves(self, rng: np.random.Generator) -> np.ndarray:
        size = self.steps, self.batch_size
        both = rng.integers(-self.moved, self.moved + 1, size=(*size, 2))
        return np.concatenate([both, rng.integers(1 + self.mirrored, size=(*size, 1))], axis=-1)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off accuracies at each optimiser's choice, and sparsity at the step sizes chosen and at all."""
        accuracy, chosen = measures.tuned(data), measures.choice(data)["rate"]
        whole = data.effective_dimension.sel(matrix="all", drop=True)
        behind, sparser = _more(accuracy.sel(optimizer=["adam", "p1_1"]), "p1_1", "adam"), whole.isel(rate=chosen)
        denser = sparser.sel(optimizer="p1_1") - sparser.sel(optimizer="adam")
        order = measures.order(whole)
        return {
            "MD-vit": {
                "behind_adam": behind,
                "behind_adam_upper": -_lower(-behind),
                **measures.lead_of_attention(data),
            },
            "MD-vit-sparse": {"denser_than_adam": denser, "denser_than_adam_upper": -_lower(-denser)},
            "MD-vit-matched": measures.by_exponent(whole.isel(rate=self.compared))
            | {"dimension_lower": order["lower"], "share_ordered": order["share_ordered"]},
        }


def _more(values: xr.DataArray, other: str = "p2", one: str = "p1_1") -> xr.DataArray:
    """Paired differences of one optimiser to another."""
    return values.sel(optimizer=one, drop=True) - values.sel(optimizer=other, drop=True)


def _lower(differences: xr.DataArray) -> xr.DataArray:
    """Lower end of the interval of the mean."""
    return measures.interval(differences)[1]
