"""Figures 1 and 2: Algorithm 1 from two starts, beside gradient descent without structure.

All variants of a seed see the same data, minibatches and random start, and take steps of the same size, as in the
paper. Sizes are this book's, because the paper's are missing in the text available to us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.experiments.curves import first_time, loss_ratio, stage
from attnbook.preconditioning.models.attention import loss_and_gradient, predict
from attnbook.preconditioning.theory.population import (
    Preconditioner,
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    sample_covariance,
)
from attnbook.preconditioning.training import Training, Variant, train_variants

__all__ = ["DESCENTS", "FILM", "POPULATION", "Settings", "StructureAwareDescent", "run"]

DESCENTS = ("spectral", "algorithm_1", "left", "unregularised", "sgd")
# Trained on the population loss too.
POPULATION = ("algorithm_1", "unregularised", "sgd")
# Whose queries are counted by the number of keys that they attend to, and between which numbers.
FILM = ("sgd", "unregularised", "algorithm_1")
BINS = 24
SNAPSHOTS = 8


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; one entry per problem where a setting is a tuple, apart from the seeds.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        n_samples: Size $n$ of the data set; one number for all problems, or one for each.
        batch_size: Samples per minibatch, drawn without replacement.
        condition_numbers: $\kappa(\Sigma)$.
        largest: Largest singular value of $A\Sigma^{1/2}$; the smallest is half of it.
        noise: Standard deviation of the label noise.
        step_sizes: Step size, the same for all variants.
        steps: Number of steps.
        records: Losses recorded after the first, evenly spaced.
        seeds: Seeds of problem, data, batches and random start.
        chunk: Seeds trained together as one program.
    """

    dimension: int = 5
    n_outputs: int = 8
    n_samples: int | tuple[int, ...] = 1000
    batch_size: int = 100
    condition_numbers: tuple[float, ...] = (3.0, 10.0)
    largest: tuple[float, ...] = (0.06, 0.4)
    noise: tuple[float, ...] = (0.02, 0.1)
    step_sizes: tuple[float, ...] = (0.05, 0.02)
    steps: tuple[int, ...] = (2000, 1000)
    records: int = 100
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        for name in ("largest", "noise", "step_sizes", "steps", "n_samples"):
            each = getattr(self, name)
            if isinstance(each, tuple) and len(each) != len(self.condition_numbers):
                raise ValueError(
                    f"{name}: expected one entry for each of the {len(self.condition_numbers)} condition_numbers, "
                    f"got {each}"
                )
        if self.records < 1 or any(steps % self.records for steps in self.steps):
            raise ValueError(f"records: expected a positive divisor of steps {self.steps}, got {self.records}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=200, batch_size=20, steps=(40, 40), records=10, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem at two sizes of the data set; the paper's own sizes are not known to us."""
        return cls(
            dimension=10,
            n_outputs=15,
            n_samples=(10_000, 100_000),
            batch_size=1000,
            condition_numbers=(3.0, 3.0),
            largest=(0.06, 0.06),
            noise=(0.02, 0.02),
            step_sizes=(0.02, 0.02),
            steps=(2000, 2000),
            chunk=1,
        )

    def setup(self, problem: int) -> Setup:
        """Return the sizes of one problem."""
        return Setup(
            dimension=self.dimension,
            n_outputs=self.n_outputs,
            condition_number=self.condition_numbers[problem],
            largest=self.largest[problem],
            smallest=self.largest[problem] / 2,
            noise=self.noise[problem],
            n_samples=self.n_samples if isinstance(self.n_samples, int) else self.n_samples[problem],
        )

    def variant(self, name: str, problem: int) -> Variant:
        """Return one of :data:`DESCENTS` with the step size of a problem."""
        kinds: dict[str, Preconditioner] = {"sgd": "none", "left": "left"}
        return Variant(
            self.step_sizes[problem],
            preconditioner=kinds.get(name, "two"),
            penalty=0.0 if name in ("sgd", "unregularised") else 1.0,
            start="spectral" if name == "spectral" else "random",
        )

    def record_at(self, problem: int) -> tuple[int, ...]:
        """Return the recorded steps of a problem."""
        return tuple(range(0, self.steps[problem] + 1, self.steps[problem] // self.records))

    def training(self, problem: int, *, population: bool) -> Training:
        """Return how a problem is trained."""
        steps, records = self.steps[problem], self.record_at(problem)
        return Training(steps, self.batch_size, records, population=population, keys=not population)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Steps of the last problem, the first and log-spaced others, at which queries are counted by their keys."""
        recorded = self.record_at(-1)
        return tuple(recorded[i] for i in log_spaced(self.records, SNAPSHOTS))

    @property
    def key_bins(self) -> Float[np.ndarray, " edges"]:
        """Edges of the bins in which queries are counted by the number of keys they attend to, 1 to the batch size."""
        return np.geomspace(1, self.batch_size, BINS + 1)


@dataclass(frozen=True)
class StructureAwareDescent(Result):
    """Training curves of every variant.

    Attributes:
        steps: Recorded steps, ``(problems, records)``.
        excess_loss: Population loss over the best one, ``(problems, records, descents, seeds)``; infinite after a
            divergence, as all that follow.
        imbalance: Imbalance of the layers, same shape.
        effective_keys: Keys that a query attends to, on average over queries, same shape.
        key_counts: How many queries of the last problem attend to how many keys, ``(snapshots, 3, bins, seeds)``.
        population: Excess loss of the last problem when trained on its population loss, ``(records, 3, seeds)``.
        gradient_errors: Largest differences between closed-form gradients and automatic differentiation: of the
            empirical loss, the population loss and the regulariser, ``(3,)``.
    """

    experiment: ClassVar[str] = "preconditioning.structure_aware_descent"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = 6

    steps: Float[np.ndarray, "problems records"]
    excess_loss: Float[np.ndarray, "problems records descents seeds"]
    imbalance: Float[np.ndarray, "problems records descents seeds"]
    effective_keys: Float[np.ndarray, "problems records descents seeds"]
    key_counts: Float[np.ndarray, "snapshots filmed bins seeds"]
    population: Float[np.ndarray, "records trained seeds"]
    gradient_errors: Float[np.ndarray, " losses"]

    def ratio(self, problem: int, name: str) -> Float[np.ndarray, "records seeds"]:
        """Return $L/L^*$ of one of :data:`DESCENTS` along training."""
        best = self.settings.setup(problem).best_loss
        return loss_ratio(self.excess_loss[problem, :, DESCENTS.index(name)], best)

    def at(self, problem: int, step: int) -> int:
        """Return the position of the first record from a step on; the last one if training is shorter."""
        recorded = self.steps[problem]
        return int(np.searchsorted(recorded, min(step, recorded[-1])))

    def first_time(self, problem: int, name: str) -> Float[np.ndarray, " seeds"]:
        """Return the first step near the optimum, for each seed."""
        return first_time(self.steps[problem], self.ratio(problem, name))

    def key_shares(self, step: int) -> Float[np.ndarray, "filmed bins"]:
        """Return the share of queries in each bin of ``settings.key_bins`` at a snapshot, all seeds together."""
        counts = self.key_counts[self.settings.snapshots.index(step)].sum(-1)
        return counts / counts.sum(-1, keepdims=True)

    def measurements(self) -> dict[str, Measurement]:
        """Return what the figures say, by claim id; a run of one problem, at any sizes, is of the larger problem."""
        errors = dict(zip(("PC-A3", "PC-A3-population", "PC-A3-regulariser"), self.gradient_errors, strict=True))
        exact = {claim: Measurement({"largest_error": float(error)}) for claim, error in errors.items()}
        setups = (self.settings.setup(problem) for problem in range(len(self.steps)))
        if len({replace(setup, n_samples=1) for setup in setups}) == 1:
            return exact | self._larger() | self._more_samples()
        return exact | self._figure_1() | self._figure_2() | self._second_problem() | self._mechanism()

    def _larger(self) -> dict[str, Measurement]:
        spectral = self.ratio(0, "spectral")
        found = {
            "PC-F1p": over_seeds(ratio_spectral_start=spectral[0], largest_ratio_spectral=spectral.max(axis=0)),
            "PC-F1p-random": over_seeds(ratio_random_end=self.ratio(0, "algorithm_1")[-1]),
            "PC-F1p-sgd": over_seeds(ratio_sgd_end=self.ratio(0, "sgd")[-1]),
        }
        alone = len(self.settings.seeds) == 1  # one seed has no range
        return {claim: Measurement(m.values) if alone else m for claim, m in found.items()}

    def _more_samples(self) -> dict[str, Measurement]:
        """What the second size of the data set changes, and what it does not."""
        if len(self.steps) == 1:
            return {}
        few, many = (self.ratio(problem, "spectral") - 1 for problem in (0, 1))
        ends = [self.ratio(problem, "algorithm_1")[-1] for problem in (0, 1)]
        return {
            "PC-F1p-samples-start": over_seeds(excess_shrinks_by=few[0] / many[0]),
            "PC-F1p-samples-rise": over_seeds(excess_grows_by=many[-1] / many[0]),
            "PC-F1p-samples-end": over_seeds(end_over_end=ends[1] / ends[0]),
        }

    def _figure_1(self) -> dict[str, Measurement]:
        spectral, sgd = self.ratio(0, "spectral"), self.ratio(0, "sgd")
        return {
            "PC-F1": over_seeds(ratio_spectral_start=spectral[0]),
            "PC-F1-stays": _extreme("largest_ratio_spectral", spectral.max(axis=0)),
            "PC-F1-sgd-start": over_seeds(ratio_sgd_start=sgd[0]),
            "PC-F1-sgd-end": _extreme("smallest_ratio_sgd_end", sgd[-1]),
        }

    def _figure_2(self) -> dict[str, Measurement]:
        ours, left, sgd = (self.ratio(0, name) for name in ("algorithm_1", "left", "sgd"))
        late, early = self.at(0, 300), self.at(0, 100)
        relative = np.median(ours[late:], axis=1) / np.median(sgd[late:], axis=1)
        times = over_seeds(hitting_time=self.first_time(0, "algorithm_1"))
        hits = float(np.isfinite(self.first_time(0, "sgd")).sum())
        end = over_seeds(ratio_end=ours[-1])
        return {
            "PC-F2": Measurement({**end.values, "largest_ratio_end": float(ours[-1].max())}, end.spread, end.n_seeds),
            "PC-F2-below": Measurement({"largest_ratio_to_sgd": float(relative.max())}, n_seeds=end.n_seeds),
            "PC-F2-time": Measurement({**times.values, "sgd_hits": hits}, times.spread, times.n_seeds),
            "PC-F2-early": over_seeds(ratio_100=ours[early], sgd_ratio_100=sgd[early]),
            "PC-F2-left": over_seeds(ratio_end=ours[-1], ratio_end_left=left[-1]),
        }

    def _second_problem(self) -> dict[str, Measurement]:
        end = self.at(1, 1000)
        best = self.settings.setup(1).best_loss
        at_end = {name: self.population[end, i] / best for i, name in enumerate(POPULATION)}
        diverged = ~np.isfinite(at_end["sgd"])
        return {
            "PC-F2b": _extreme("largest_ratio_end", self.ratio(1, "algorithm_1")[-1]),
            "PC-F2b-sgd": _extreme("smallest_ratio_sgd_end", self.ratio(1, "sgd")[-1]),
            "PC-F11": over_seeds(excess_over_best_algorithm_1=at_end["algorithm_1"]),
            "PC-F11-sgd": Measurement({"diverged_fraction_sgd": float(diverged.mean())}, n_seeds=len(diverged)),
            "PC-F11-unregularised": over_seeds(excess_over_best_unregularised=at_end["unregularised"]),
        }

    def _mechanism(self) -> dict[str, Measurement]:
        ours, sgd = DESCENTS.index("algorithm_1"), DESCENTS.index("sgd")
        medians = np.median(self.imbalance, axis=-1)
        late = [float(medians[p, self.at(p, 500) :, ours].max()) for p in (0, 1)]
        seeds = self.imbalance.shape[-1]
        keys = {step: self.effective_keys[1, self.at(1, step)] for step in (100, 1000)}
        names = [f"kappa_{kappa:g}" for kappa in self.settings.condition_numbers]
        each = {f"from_500_{name}": value for name, value in zip(names, late, strict=True)}
        return {
            "PC-F9": Measurement({"largest_imbalance_from_500": max(late), **each}, n_seeds=seeds),
            "PC-F9-sgd": Measurement({"smallest_imbalance_sgd_end": float(medians[:, -1, sgd].min())}, n_seeds=seeds),
            "PC-F10": over_seeds(effective_keys_1000=keys[1000][ours], effective_keys_sgd_1000=keys[1000][sgd]),
            "PC-F10-early": over_seeds(effective_keys_100=keys[100][ours], effective_keys_sgd_100=keys[100][sgd]),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> StructureAwareDescent:
    """Train all variants on all problems.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a batch is larger than the data set.
    """
    clock, where = Clock(), runtime.device(device)
    problems = range(len(settings.condition_numbers))

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        def curves(problem: int, number: int, *, population: bool = False) -> dict[str, np.ndarray]:
            names = POPULATION if population else DESCENTS
            records = train_variants(
                [settings.variant(name, problem) for name in names],
                seeds,
                settings.setup(problem),
                settings.training(problem, population=population),
                device=where,
                progress=stage(inner, number, len(problems) + 1),
            ).records
            return {name: v.reshape(len(v), len(names), len(seeds), *v.shape[2:]) for name, v in records.items()}

        found = [curves(problem, problem) for problem in problems]
        keys = found[-1]["effective_keys"]
        for records in found:
            records["effective_keys"] = records["effective_keys"].mean(-1)
        return {name: np.stack([records[name] for records in found]) for name in found[0]} | {
            "key_counts": _key_counts(settings, keys),
            "population": curves(len(problems) - 1, len(problems), population=True)["excess_loss"],
        }

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    curves = concatenate(parts, axis=-1)
    steps = [settings.record_at(problem) for problem in problems]
    return StructureAwareDescent(
        settings=settings,
        provenance=clock.provenance(where),
        steps=np.array(steps, dtype=np.float64),
        gradient_errors=_gradient_errors(settings),
        **curves,
    )


def _key_counts(settings: Settings, keys: np.ndarray) -> np.ndarray:
    """Count queries by the number of keys they attend to; from ``(records, descents, seeds, queries)``."""
    at = [settings.record_at(-1).index(step) for step in settings.snapshots]
    filmed = keys[np.ix_(at, [DESCENTS.index(name) for name in FILM])]
    bins = np.searchsorted(settings.key_bins[1:-1], filmed, side="right")  # rounding stays in the outer bins
    counted = np.where(np.isfinite(filmed), bins, -1)  # not those of members that have diverged
    return np.stack([(counted == b).sum(-1) for b in range(BINS)], axis=2)


def _extreme(name: str, samples: np.ndarray) -> Measurement:
    """The largest or smallest over seeds, as the name says, with the range over seeds."""
    value = samples.max() if name.startswith("largest") else samples.min()
    return Measurement({name: float(value)}, {name: (float(samples.min()), float(samples.max()))}, len(samples))


def _gradient_errors(settings: Settings) -> np.ndarray:
    """Largest differences between closed forms and automatic differentiation, at random points in float64."""
    rng, members, seeds = stream(0, "gradients"), 6, 3
    m, d = settings.n_outputs, settings.dimension

    def draw(*shape: int) -> Tensor:
        return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

    layers = {"value": draw(members, m, d).requires_grad_(), "key_query": draw(members, d, d).requires_grad_()}
    inputs, labels, true_map = draw(seeds, 2 * d, d), draw(seeds, 2 * d, m), draw(m, d)
    covariance = sample_covariance(inputs[0])
    together = [tensor.repeat(members // seeds, 1, 1) for tensor in (inputs, labels)]
    residual = predict(layers["value"], layers["key_query"], together[0]) - together[1]
    true = {"covariance": covariance, "true_map": true_map}
    losses = [
        residual.square().sum((-2, -1)) / (4 * d),
        excess_loss(*layers.values(), **true),
        balance_penalty(*layers.values(), covariance=covariance),
    ]
    detached = {name: layer.detach() for name, layer in layers.items()}
    closed = [
        tuple(loss_and_gradient(detached, (inputs, labels))[1].values()),
        excess_loss_gradient(*detached.values(), **true),
        penalty_gradient(*detached.values(), covariance=covariance),
    ]
    automatic = [torch.autograd.grad(loss.sum(), list(layers.values())) for loss in losses]
    return np.array(
        [
            max(float((one - other).abs().max()) for one, other in zip(*pair, strict=True))
            for pair in zip(closed, automatic, strict=True)
        ]
    )
