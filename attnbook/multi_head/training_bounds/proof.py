"""The proof of Theorem 1 inside its own conditions: training on a tiny problem, and the loss between two networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import derivatives, head_groups, layer, network, starts
from attnbook.multi_head.checks import at_least, increasing, positive
from attnbook.multi_head.curvature_bounds import allowed_distance, loss_constants
from attnbook.multi_head.experiment_parts import random_networks
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.on_mixture import OnMixture, Stack

SIZES: dict[str, Any] = {"n_tokens": 2, "dimension": 2, "token_norm": 1.0}
FACTOR = 4 / 3  # of Proposition 4
POSITIONS = 21  # points on each segment, ends included


@dataclass(frozen=True, kw_only=True)
class InsideTheorem(Experiment):
    r"""Theorem 1 inside its own hypotheses, with the constants of Section 6.1 and the step size $1/\rho$."""

    id = "multi_head.inside_theorem"
    summary = "Theorem 1 inside its own hypotheses: two tokens, constants as printed, two hundred thousand steps"
    needs = "float64"
    budget_seconds = 60
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 300, "seeds": (0, 1)}

    n_samples: int = 20  # training samples
    n_heads: float = 1e12  # half of them with each sign
    distance: float = 2.17  # of the target; of those that meet the hypotheses, about that of the smallest bound
    steps: int = 210_000  # of gradient descent
    records: int = 30  # log-spaced steps to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, n_samples=self.n_samples, steps=self.steps)
        positive(distance=self.distance)

    def coordinates(self) -> dict[str, Any]:
        """Name steps and hypotheses."""
        hypotheses = ["heads", "loss of the target", "loss at the start"]
        return {"step": list(log_spaced(self.steps, self.records)), "hypothesis": hypotheses}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Hold the target against the hypotheses, and train."""
        drawn = zip(*map(self._two_tokens, seeds), strict=True)
        tokens, labels = (torch.tensor(np.stack(part), device=device) for part in drawn)
        counts = tokens.new_full((len(seeds), 2), self.n_heads / 2)
        stack, square = Stack(starts.first_phase(tokens, labels), counts, tokens, labels, tokens), self.distance**2
        with threads(1):
            target = stack.towards(stack.tangent().direction, np.full(len(seeds), self.distance))
            sizes = SIZES | {"head_norm": largest_head_norm(target).cpu().numpy(), "distance": self.distance}
            eta = np.minimum(1.0, 1 / theory.smoothness(**sizes, n_heads=self.n_heads))
            loss, at_start = (np.asarray(stack.losses(one).cpu()) for one in (target, stack.start))
            enough = theory.sketch_heads(**sizes) / self.n_heads
            history = self._followed(stack, target, eta, progress)
        asked = np.stack([enough, eta * self.steps * loss / square, eta * at_start / square], axis=1)
        return {
            "step_size": (("seed",), eta),
            "target_loss": (("seed",), loss),
            "asked": (("seed", "hypothesis"), asked),
        } | {name: (("seed", "step"), values) for name, values in history.items()}

    def _two_tokens(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """One token is the label times the first unit vector, the other at most half of the second."""
        rng, n = stream(seed, "two tokens"), self.n_samples
        labels = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
        tokens, relevant = np.zeros((n, 2, 2)), rng.integers(0, 2, n)
        tokens[np.arange(n), relevant, 0] = labels
        tokens[np.arange(n), 1 - relevant, 1] = rng.uniform(-1, 1, n) / 2
        return tokens, labels

    def _followed(
        self, stack: Stack, target: Parameters, step_size: np.ndarray, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        r"""Train and record losses, distances, descent over what (13) states, and $\beta_2$ of Corollary 1."""
        rate, kept = torch.from_numpy(step_size).to(stack.tokens)[:, None, None, None], self.coordinates()["step"]
        objective, now, losses, records = logistic(stack.labels), stack.start, [], []
        for step in range(self.steps + 2):
            value, gradient = layer.value_and_gradient(now, stack.tokens, objective, counts=stack.counts)
            losses.append(value)
            if step in kept:
                away, apart = ({n: now[n] - other[n] for n in now} for other in (stack.start, target))
                norms = [head_groups.norm(one, counts=stack.counts) for one in (away, apart, gradient)]
                records.append(torch.stack([*norms, largest_head_norm(now)]).cpu().numpy())
                if progress:
                    progress(step, self.steps)
            now = {n: now[n] - rate * gradient[n] for n in now}
        loss = torch.stack(losses).cpu().numpy()
        distance, from_target, slope, head_norm = np.moveaxis(np.array(records), 0, 2)
        fell = (loss[:-1] - loss[1:])[kept].T / (step_size[:, None] / 2 * slope**2)
        beta_2 = loss_constants(**SIZES, n_heads=self.n_heads, largest_head_norm=head_norm).smoothness
        return {"loss": loss[kept].T, "average": averages(loss)[kept].T, "distance": distance,
                "from_target": from_target, "descent": fell, "smoothness": beta_2}  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold averages, distances, descent and smoothness against what is stated."""
        later = data.isel(step=slice(1, None))
        run = {"target_loss": data.target_loss, "step_size": data.step_size, "steps": later.step}
        bound = theory.regret_bound(**run, distance=self.distance)
        return {
            "MH-T1.1-regret": {
                "largest_asked": highest(data.asked),
                "largest_ratio": highest(later.average / bound),
                "largest_last": highest(later.loss / later.average),
                "bound_at_the_end": highest(bound.isel(step=-1)),
                "smallest_descent": lowest(data.descent),
                "smallest_rho_over_beta_2": lowest(1 / (data.smoothness * data.step_size)),
            },
            "MH-T1.2": {
                "largest_ratio": highest(data.distance / (4 * self.distance)),
                "largest_from_target": highest(data.from_target / (3 * self.distance)),
            },
        }


def averages(loss: np.ndarray) -> np.ndarray:
    """The average over steps 1 to each one along the first axis; the loss itself at step 0."""
    steps = np.arange(1, len(loss)).reshape(-1, *[1] * (loss.ndim - 1))
    return np.concatenate([loss[:1], np.cumsum(loss[1:], axis=0) / steps])


@dataclass(frozen=True, kw_only=True)
class Segments(OnMixture):
    """Pairs on both sides of a random network, where the loss has no slope and curves down most."""

    id = "multi_head.segments"
    summary = "Proposition 4: the loss between two networks"
    needs = "cpu"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {"seeds": (0, 1), "multiples": (1.0, 300.0)}
    axes: ClassVar[Mapping[str, str]] = {"multiple": "multiples"}

    n_samples: int = 40  # training samples
    n_heads: int = 2  # few, as whole Hessians are computed
    scale: float = 0.5  # standard deviation of the entries of the random network
    multiples: tuple[float, ...] = (1.0, 10.0, 100.0, 300.0)  # distances, in units of the allowed one
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(1, count=2, multiples=self.multiples)
        if self.multiples[0] != 1:
            raise ValueError(f"multiples: expected to begin with 1, got {self.multiples}")

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure the loss on segments of each seed; one network at a time, on the CPU."""
        sizes = self.n_heads, self.n_tokens, self.dimension

        def one_seed(seed: int) -> Arrays:
            batch = self.draw((seed,), self.n_samples, "samples", device)[:2]
            random = random_networks([stream(seed, "random point")], sizes, scale=self.scale)
            pairs = self._pairs(random, batch)
            losses, (one, other) = [[float(network.losses(at, batch)) for at in _points(*p)] for p in pairs], pairs[-1]
            smallest = min(np.linalg.eigvalsh(_hessian(point, batch))[0] for point in _points(one, other))
            hills = [max(loss) / max(loss[0], loss[-1]) for loss in losses]
            below = [_violation(*ends, batch, smallest) for ends in ((one, other), (other, one))]
            return {"hill": (("multiple",), hills), "lower_violation": (("end",), below)}

        with threads(1):
            return self.grid(("seed",), one_seed, also={"seed": seeds}, progress=progress)

    def _pairs(self, random: Parameters, batch: network.Batch) -> list[tuple[Parameters, Parameters]]:
        """Networks on both sides of this one, for each multiple of the allowed distance."""
        slope = _flat(network.loss_and_gradient(random, batch)[1]).numpy()
        across = np.eye(len(slope)) - np.outer(slope, slope) / (slope @ slope)
        steepest = np.linalg.eigh(across @ _hessian(random, batch) @ across)[1][:, 0]
        rows = torch.from_numpy(steepest).view(1, self.n_heads, -1, self.dimension)
        direction = {"decoder": rows[:, :, : self.n_tokens], "key_query": rows[:, :, self.n_tokens :]}

        def at(where: float) -> Parameters:
            return {name: random[name] + where * direction[name] for name in random}

        sizes = {"n_tokens": self.n_tokens, "dimension": self.dimension, "n_heads": self.n_heads}
        token_norm, allowed = max(1.0, float(batch[0].norm(dim=3).max())), 0.0
        for _ in range(20):  # the norms of the ends, on which it depends, depend on it
            largest = max(float(largest_head_norm(at(end))) for end in (-allowed / 2, allowed / 2))
            allowed = allowed_distance(**sizes, token_norm=token_norm, head_norm=largest)
        return [(at(-multiple * allowed / 2), at(multiple * allowed / 2)) for multiple in self.multiples]

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how far the loss rises above the larger end, and on which side of the Taylor bound it is."""
        allowed, far = data.hill.isel(multiple=0), data.hill.isel(multiple=-1)
        return {
            "MH-P4.1": {
                "largest_ratio": highest(allowed), "largest_rise": highest(allowed - 1),
                "share_far": (far > FACTOR).mean(), "ratio_far": far,
            },
            "MH-B13.4": {
                "largest_lower_bound_violation": highest(data.lower_violation),
                "printed_violations": (data.lower_violation < 0).sum("end"),
            },
        }  # fmt: skip


def _points(one: Parameters, other: Parameters) -> list[Parameters]:
    shares = torch.linspace(0, 1, POSITIONS, device="cpu", dtype=torch.float64)
    return [{name: (1 - share) * one[name] + share * other[name] for name in one} for share in shares]


def _violation(one: Parameters, other: Parameters, batch: network.Batch, smallest: float) -> float:
    """Right side of eq. (14) minus its left side, with the smallest eigenvalue on the segment."""
    loss, gradient = network.loss_and_gradient(one, batch)
    step = _flat({name: other[name] - one[name] for name in one})
    return float(loss + _flat(gradient) @ step + smallest / 2 * step @ step - network.losses(other, batch))


def _hessian(parameters: Parameters, batch: network.Batch) -> np.ndarray:
    own = {name: tensor[0] for name, tensor in parameters.items()}
    return derivatives.loss_hessian(own, batch[0][0], batch[1][0]).dense()


def _flat(parameters: Parameters) -> torch.Tensor:
    """All entries in the order of the Hessian: head by head, the decoder first."""
    return torch.cat([parameters[name][0].flatten(1) for name in ("decoder", "key_query")], dim=1).flatten()
