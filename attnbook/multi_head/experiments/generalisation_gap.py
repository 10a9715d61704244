"""Theorem 2 and Corollary 2: how far is the test loss from the training loss, and how far do they say at most?

Networks of a few sizes of training set start after the first phase and train for as many steps as there are samples,
and for a fixed number. Beside them, on the same tokens, are networks whose labels are coin tosses: there nothing can be
learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.gap_settings import Settings
from attnbook.multi_head.experiments.targets import best_margin
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import tangent_features, tangent_margin

__all__ = ["SCHEDULES", "GeneralisationGap", "Settings", "at_distance", "run"]

NO_GAP = 1e-12
"""What counts as the mean gap where there is none."""

SCHEDULES = ("as many steps as samples", "a fixed number of steps")
"""Numbers of steps, $K=n$ and one $K$ for every $n$."""


@dataclass(frozen=True)
class GeneralisationGap(Result):
    r"""Losses and what the bounds need; the schedules are those of :data:`SCHEDULES`.

    Attributes:
        train_loss: Loss on the training samples.
        test_loss: Loss on fresh samples.
        test_error: Share of fresh samples on the wrong side.
        margin: Tangent-kernel margin $\gamma$ of the training sample at the start.
        output_bound: $B_\Phi$, the largest output at the start, at least 1.
        target_loss: Training loss of the target of Corollary 2, $\hat L(\tilde\theta)$.
        target_head_norm: Norm of its largest head.
        random_train_loss: Loss on the training samples when all labels are coin tosses, those of the first phase too.
        random_test_loss: Loss on fresh samples whose labels are coin tosses too.
        random_margin: Tangent-kernel margin of the tossed training sample at the start of these networks; NaN where no
            direction has a positive one.
    """

    experiment: ClassVar[str] = "multi_head.generalisation_gap"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds schedules sizes"]
    test_loss: Float[np.ndarray, "seeds schedules sizes"]
    test_error: Float[np.ndarray, "seeds schedules sizes"]
    margin: Float[np.ndarray, "seeds sizes"]
    output_bound: Float[np.ndarray, "seeds sizes"]
    target_loss: Float[np.ndarray, "seeds schedules sizes"]
    target_head_norm: Float[np.ndarray, "seeds schedules sizes"]
    random_train_loss: Float[np.ndarray, "seeds schedules sizes"]
    random_test_loss: Float[np.ndarray, "seeds schedules sizes"]
    random_margin: Float[np.ndarray, "seeds sizes"]

    @property
    def gap(self) -> Float[np.ndarray, "seeds schedules sizes"]:
        """Test minus training loss."""
        return self.test_loss - self.train_loss

    @property
    def random_gap(self) -> Float[np.ndarray, "seeds schedules sizes"]:
        """The same when all labels are coin tosses."""
        return self.random_test_loss - self.random_train_loss

    @property
    def steps(self) -> list[tuple[int, ...]]:
        """Steps $K$ of each schedule, by size."""
        return [self.settings.sizes, (self.settings.steps,) * len(self.settings.sizes)]

    @property
    def corollary_2(self) -> Float[np.ndarray, "seeds schedules sizes"]:
        """Corollary 2's bound, with the margin of each training sample."""
        return self._by_size(
            lambda n, k, a, j: theory.corollary_2(
                n_samples=n,
                steps=k,
                step_size=self.settings.step_size,
                margin=self.margin[:, j],
                output_bound=self.output_bound[:, j],
            )
        )

    @property
    def target_distance(self) -> Float[np.ndarray, "seeds schedules sizes"]:
        """Distance of the target of Corollary 2 from the start."""
        return self._by_size(
            lambda n, k, a, j: theory.target_distance(
                steps=k, margin=self.margin[:, j], output_bound=self.output_bound[:, j]
            )
        )

    @property
    def theorem_2(self) -> Float[np.ndarray, "seeds schedules sizes"]:
        """Theorem 2's bound for this target, before the mean over training samples."""
        distance = self.target_distance
        return self._by_size(
            lambda n, k, a, j: theory.theorem_2(
                n_samples=n,
                steps=k,
                step_size=self.settings.step_size,
                target_loss=self.target_loss[:, a, j],
                target_distance=distance[:, a, j],
            )
        )

    def _by_size(self, of: Callable[[int, int, int, int], np.ndarray]) -> np.ndarray:
        """Stack what a function returns for each (n, K, schedule, size)."""
        rows = [
            [of(n, k, a, j) for j, (n, k) in enumerate(zip(self.settings.sizes, steps, strict=True))]
            for a, steps in enumerate(self.steps)
        ]
        return np.array(rows).transpose(2, 0, 1)

    def slopes(self, gap: Float[np.ndarray, "seeds sizes"]) -> tuple[float, Float[np.ndarray, " seeds"]]:
        """Return the slope of the logarithm of the mean gap in log n, of all seeds and without each of them in turn.

        A mean gap that is not positive counts as :data:`NO_GAP`, so that no rule about slopes holds by it.
        """
        centred = np.log(self.settings.sizes) - np.mean(np.log(self.settings.sizes))

        def slope(of: np.ndarray) -> float:
            return float(np.log(np.maximum(of.mean(0), NO_GAP)) @ centred / (centred @ centred))

        return slope(gap), np.array([slope(np.delete(gap, i, axis=0)) for i in range(len(gap))])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id; of what rests on means the spread is the range without each seed."""
        gap, bound = self.gap, self.corollary_2
        at_n = bound[:, 0]
        return {
            "MH-T2.1": self._slopes(slope_mean_gap=gap[:, 0]),
            "MH-T2.1-fixed": self._slopes(slope_mean_gap=gap[:, 1], slope_coin_tosses=self.random_gap[:, 1]),
            "MH-T2.1-decrease": _without_each(
                lambda g: {"largest_mean_gap_ratio": (g.mean(0)[:, 1:] / g.mean(0)[:, :-1]).max()}, gap
            ),
            "MH-T2.1-random": self._slopes(slope_mean_gap=self.random_gap[:, 0]),
            "MH-T2.2": _without_each(lambda g, b: {"largest_ratio": (g.mean(0) / b.min(0)).max()}, gap, bound),
            "MH-T2.2-target": _without_each(
                lambda g, b: {"largest_ratio": (g.mean(0) / b.mean(0)).max()}, gap, self.theorem_2
            ),
            "MH-T2.2-margin": over_seeds(
                margin_smallest_n=self.margin[:, 0],
                margin_largest_n=self.margin[:, -1],
                bound_smallest_n=at_n[:, 0],
                bound_largest_n=at_n[:, -1],
            ),
            "MH-T2.2-vacuous": extremes_over_seeds(smallest_bound=bound),
        }

    def _slopes(self, **gaps: np.ndarray) -> Measurement:
        slopes = {name: self.slopes(gap) for name, gap in gaps.items()}
        spread = {name: (float(without.min()), float(without.max())) for name, (_, without) in slopes.items()}
        return Measurement({name: slope for name, (slope, _) in slopes.items()}, spread, len(self.gap))


def _without_each(measure: Callable[..., dict[str, float]], *arrays: np.ndarray) -> Measurement:
    """Measure over all seeds, with the range when each seed is left out."""
    without = [measure(*(np.delete(array, i, axis=0) for array in arrays)) for i in range(len(arrays[0]))]
    values = {name: float(value) for name, value in measure(*arrays).items()}
    spread = {
        name: (float(min(one[name] for one in without)), float(max(one[name] for one in without))) for name in values
    }
    return Measurement(values, spread, len(arrays[0]))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> GeneralisationGap:
    """Train on samples of every size and measure the gap and what the bounds need.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (sizes done, sizes in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a training sample is not separable in the tangent kernel.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        first, test = (
            samples.draw(settings.mixture, count, seeds, purpose=purpose, device=where)
            for purpose, count in (("first phase", settings.first_samples), ("test", settings.test_samples))
        )
        true = _Task(settings, seeds, starts.first_phase(first.tokens, first.labels), test)
        coins = _tossed(first, seeds, "first phase")
        random = _Task(settings, seeds, starts.first_phase(coins.tokens, coins.labels), _tossed(test, seeds, "test"))
        found = []
        for number, n in enumerate(settings.sizes, 1):
            batch = samples.draw(settings.mixture, n, seeds, purpose=f"samples {n}", device=where)
            of_coins, steps = _tossed(batch, seeds, f"samples {n}"), (n, settings.steps)
            tossed = random.train(of_coins, steps) | {"margin": random.margin(of_coins)}
            measured = true.train(batch, steps) | true.bounds(batch, steps)
            found.append(measured | {f"random_{name}": tossed[name] for name in ("train_loss", "test_loss", "margin")})
            if inner:
                inner(number, len(settings.sizes))
        return {name: np.stack([one[name] for one in found], axis=-1) for name in found[0]}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return GeneralisationGap(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


class _Task:
    """Training from one start, tested on the same fresh samples each time; one member for each seed."""

    def __init__(self, settings: Settings, seeds: tuple[int, ...], start: Parameters, test: samples.Drawn) -> None:
        self.settings, self.start, self.test = settings, start, test
        counts = np.tile(starts.even_sign_counts(settings.heads), (len(seeds), 1))
        self.counts = torch.as_tensor(counts).to(test.tokens)

    def train(self, batch: samples.Drawn, steps: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return losses, and the error, after each of some increasing numbers of steps, ``(seeds, steps)``."""

        def record(parameters: Parameters) -> dict[str, Tensor]:
            margins = self.test.labels * layer.outputs(parameters, self.test.tokens, counts=self.counts)
            return {
                "train_loss": self._loss(parameters, batch),
                "test_loss": -logsigmoid(margins).mean(1),
                "test_error": (margins <= 0).double().mean(1),
            }

        history = head_groups.gradient_descent(
            self.start,
            batch.tokens,
            logistic(batch.labels),
            counts=self.counts,
            step_size=self.settings.step_size,
            steps=steps[-1],
            record=record,
            record_at=steps,
        )
        at = np.searchsorted(history.steps, steps)
        return {name: values[at].T for name, values in history.records.items()}

    def bounds(self, batch: samples.Drawn, steps: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return what the bounds need: margin, largest output and the loss of the target for each number of steps."""
        outputs = layer.outputs(self.start, batch.tokens, counts=self.counts)
        output_bound = outputs.abs().amax(1).clamp(min=1).cpu().numpy()
        best = tangent_margin(self.start, batch.tokens, batch.labels, counts=self.counts)
        losses, norms = [], []
        for number in steps:
            distance = theory.target_distance(steps=number, margin=best.margin, output_bound=output_bound)
            target = at_distance(self.start, best.direction, torch.as_tensor(distance).to(outputs))
            losses.append(self._loss(target, batch).cpu().numpy())
            norms.append(largest_head_norm(target).cpu().numpy())
        found = {"target_loss": np.stack(losses, axis=1), "target_head_norm": np.stack(norms, axis=1)}
        return found | {"margin": best.margin, "output_bound": output_bound}

    def margin(self, batch: samples.Drawn) -> np.ndarray:
        """Return the tangent-kernel margin of the samples at the start, NaN where there is none."""
        return best_margin(tangent_features(self.start, batch.tokens, counts=self.counts), batch.labels)

    def _loss(self, parameters: Parameters, batch: samples.Drawn) -> Tensor:
        return -logsigmoid(batch.labels * layer.outputs(parameters, batch.tokens, counts=self.counts)).mean(1)


def at_distance(start: Parameters, direction: Parameters, distance: Float[Tensor, " members"]) -> Parameters:
    """Return the target at a distance from the start, in a direction of norm 1 over all heads."""
    far = distance[:, None, None, None]
    return {name: start[name] + far * direction[name] for name in start}


def _tossed(drawn: samples.Drawn, seeds: tuple[int, ...], purpose: str) -> samples.Drawn:
    """Replace every label by a coin toss."""
    n_samples = drawn.labels.shape[1]
    coins = np.stack([stream(seed, "coins", purpose).choice([1.0, -1.0], n_samples) for seed in seeds])
    return drawn._replace(labels=to_tensor(coins, device=drawn.labels.device, dtype=torch.float64))
