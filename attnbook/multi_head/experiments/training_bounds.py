r"""Theorem 1 and Corollary 2 at work: what gradient descent does, what is promised, and what the promise asks for.

Networks with 4 to a million million heads start after the first phase and are trained at a practical step size, far
outside the hypotheses. Averages and distances are set beside the bounds; the hypotheses are evaluated for the same
data, with the tangent-kernel margin of the same start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import layer
from attnbook.multi_head.experiments import readings, samples, wide, wide_training
from attnbook.multi_head.readings import STEP_SIZES, chain_heads
from attnbook.multi_head.tangent_kernel import linearised_outputs, tangent_margin

__all__ = ["Settings", "TrainingBounds", "run"]

# From this many heads on, the largest movement must follow its law.
MANY = 64
# Outputs that differ by less are equal up to rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Settings(wide.Sizes):
    """Sizes, and how to train.

    Attributes:
        step_size: Practical step size; not tuned.
        horizons: Numbers of steps $K$ at which both sides are compared; the last is at most ``steps``.
        records: How many log-spaced steps to keep.
    """

    step_size: float = 0.5
    horizons: tuple[int, ...] = (100, 1000)
    records: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_size > 0:
            raise ValueError(f"step_size: expected a positive number, got {self.step_size}")
        if not self.horizons or not 1 <= min(self.horizons) <= max(self.horizons) <= self.steps:
            raise ValueError(f"horizons: expected numbers between 1 and {self.steps} steps, got {self.horizons}")
        if sum(n_heads >= MANY for n_heads in self.heads) < 2:
            raise ValueError(f"heads: expected at least two of at least {MANY}, got {self.heads}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(heads=(4, 64, 1e6), steps=100, horizons=(10, 100), seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem, trained longer."""
        return cls(
            n_tokens=10, dimension=50, n_patterns=20, n_samples=50, steps=10_000, horizons=(100, 1000, 10_000), chunk=1
        )

    @property
    def recorded(self) -> tuple[int, ...]:
        """The steps that are kept."""
        return log_spaced(self.steps, self.records, also=self.horizons)


@dataclass(frozen=True)
class TrainingBounds(Result):
    r"""Both sides of the bounds, mostly ``(seeds, heads)`` and a last axis over recorded steps or horizons.

    Attributes:
        loss: The training loss at the recorded steps.
        average: Its average over steps 1 to the recorded one; the loss itself at step 0.
        distance: Distance of all weights from the start at the recorded steps.
        largest_move: Distance of the head that moved most at the recorded steps.
        attention: Mean attention on relevant tokens at the end, heads of sign plus and minus.
        linear_gap: Largest difference, over samples, between the outputs at the end and those of the linearised
            network.
        margin: Tangent-kernel margin at the start, for directions of norm root two.
        start_output: Largest output at the start, in absolute value.
        target_loss: Loss of the target at distance $g_0(1/K)$ in the best tangent direction, for each horizon.
        token_norm: Norm of the largest token of the sample, at least 1, ``(seeds,)``.
        head_norm: Norm of the largest head at the start, ``(seeds,)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "multi_head.training_bounds"
    settings_type: ClassVar[type] = Settings

    loss: Float[np.ndarray, "seeds heads records"]
    average: Float[np.ndarray, "seeds heads records"]
    distance: Float[np.ndarray, "seeds heads records"]
    largest_move: Float[np.ndarray, "seeds heads records"]
    attention: Float[np.ndarray, "seeds heads signs"]
    linear_gap: Float[np.ndarray, "seeds heads"]
    margin: Float[np.ndarray, "seeds heads"]
    start_output: Float[np.ndarray, "seeds heads"]
    target_loss: Float[np.ndarray, "seeds heads horizons"]
    token_norm: Float[np.ndarray, " seeds"]
    head_norm: Float[np.ndarray, " seeds"]

    def start(self, seed: int, width: int) -> theory.GoodStart:
        """Return what the theorem needs to know about a start; both arguments are positions, not values."""
        return theory.GoodStart(
            n_tokens=self.settings.n_tokens,
            dimension=self.settings.dimension,
            token_norm=float(self.token_norm[seed]),
            margin=float(self.margin[seed, width]),
            output_bound=max(1.0, float(self.start_output[seed, width])),
            head_bound=max(1.0, float(self.head_norm[seed])),
        )

    @cached_property
    def starts(self) -> list[list[theory.GoodStart]]:
        """The starts, by seed and width."""
        return [[self.start(i, j) for j in range(self.loss.shape[1])] for i in range(len(self.loss))]

    @property
    def ratios(self) -> dict[str, Float[np.ndarray, "seeds heads horizons"]]:
        """Measured over stated at the horizons, by what is stated."""
        eta, at = self.settings.step_size, [self.settings.recorded.index(k) for k in self.settings.horizons]
        stated = {name: np.empty_like(self.target_loss) for name in ("corollary", "regret", "distance")}
        for i, j, k in np.ndindex(self.target_loss.shape):
            start, steps = self.starts[i][j], self.settings.horizons[k]
            far = theory.target_distance(start, steps)
            stated["corollary"][i, j, k] = theory.final_bound(start, steps, eta)
            stated["regret"][i, j, k] = theory.regret_bound(
                target_loss=float(self.target_loss[i, j, k]), distance=far, step_size=eta, steps=steps
            )
            stated["distance"][i, j, k] = 4 * far
        return {
            "corollary": self.average[..., at] / stated["corollary"],
            "regret": self.average[..., at] / stated["regret"],
            "distance": self.distance[..., at] / stated["distance"],
            "last": self.loss[..., at] / self.average[..., at],
        }

    @property
    def slopes(self) -> dict[str, Float[np.ndarray, " seeds"]]:
        r"""Slopes in $\log H$ of the largest movement and of the gap to the linearised network, from 64 heads on.

        The gap is used where it is above rounding.
        """
        heads, found = np.array(self.settings.heads), {}
        ranges = {
            "largest_move": heads >= MANY,
            "linear_gap": (heads >= MANY) & (self.linear_gap.min(axis=0) > ROUNDING),
        }
        for name, values in {"largest_move": self.largest_move[..., -1], "linear_gap": self.linear_gap}.items():
            x = np.log(heads[ranges[name]])
            x -= x.mean()
            found[name] = np.log(values[:, ranges[name]]) @ x / (x @ x)
        return found

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Theorem 1 and Corollary 2, by claim id."""
        ratios, slopes = self.ratios, self.slopes
        plus, few, many = self.attention[..., 0], 0, -1
        sizes = {"heads": self.settings.heads, "horizons": self.settings.horizons}
        by_reading = {name: readings.allowed(self.starts, of, **sizes) for name, of in STEP_SIZES.items()}
        return {
            "MH-T1.1": extremes_over_seeds(largest_ratio=ratios["corollary"]),
            "MH-T1.1-regret": extremes_over_seeds(largest_ratio=ratios["regret"]),
            "MH-T1.1-last": extremes_over_seeds(largest_ratio=ratios["last"]),
            "MH-T1.1-informative": self._informative(),
            "MH-T1.2": extremes_over_seeds(largest_ratio=ratios["distance"]),
            "MH-T1.3": over_seeds(
                required_heads=self._of(partial(theory.order_heads, steps=100))[:, 0],
                required_heads_four_steps=self._of(partial(chain_heads, steps=100))[:, 0],
            ),
            "MH-T1.4": by_reading["reconstructed"],
            "MH-T1.4-steps": by_reading["reconstructed"],
            **{f"MH-T1.4-{name}": by_reading[name] for name in ("corollary", "theorem", "chain")},
            "MH-T1-tracked-gains": readings.gains(
                [row[-1] for row in self.starts], steps=100, n_heads=self.settings.heads[-1]
            ),
            "MH-T1.5": over_seeds(slope=slopes["largest_move"]),
            "MH-T1.5-linear": over_seeds(slope=slopes["linear_gap"]),
            "MH-T1.5-attention": over_seeds(
                moved_few=plus[:, few] - self.settings.relevant_fraction,
                moved_many=np.abs(self.attention[:, many] - self.settings.relevant_fraction).max(axis=1),
            ),
            "MH-T1.6": self._constant(),
        }

    def _of(self, formula: Callable[[theory.GoodStart], float]) -> Float[np.ndarray, "seeds heads"]:
        """A formula at every start."""
        return np.array([[formula(start) for start in row] for row in self.starts])

    def _informative(self) -> Measurement:
        """The bound where it is lowest after 100 steps, highest after 1000."""
        formula = partial(theory.final_bound, step_size=self.settings.step_size)
        early, late = (self._of(partial(formula, steps=steps)) for steps in (100, 1000))
        found = extremes_over_seeds(smallest=early, largest=late)
        names = {"bound_100": "smallest", "bound_1000": "largest"}
        values = {name: found.values[of] for name, of in names.items()}
        return Measurement(values, {name: found.spread[of] for name, of in names.items()}, found.n_seeds)

    def _constant(self) -> Measurement:
        """The least convincing horizon for either verdict."""
        horizons = self.settings.horizons
        printed = self._of(lambda s: min(theory.scaled_worst_loss(s, k) for k in horizons))
        stretched = self._of(lambda s: max(theory.scaled_worst_loss(s, k, stretch=2**0.5) for k in horizons))
        return over_seeds(scaled_loss_printed=printed.min(axis=1), scaled_loss_sqrt2=stretched.max(axis=1))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> TrainingBounds:
    """Train networks of every width and record both sides of the bounds.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a sample is not separable.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        stack = wide.draw(settings, seeds, where)
        shape = (len(seeds), len(settings.heads))
        found = wide_training.train(stack, settings.step_size, settings.steps, settings.recorded, progress=inner)
        arrays = {name: found[name] for name in ("loss", "average", "distance", "largest_move", "attention")}
        arrays |= _at_start(settings, stack, found["outputs"])
        arrays = {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}
        return arrays | wide_training.norms(stack, len(settings.heads))

    with threads(1):
        parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return TrainingBounds(settings=settings, provenance=clock.provenance(where), **arrays)


def _at_start(settings: Settings, stack: wide.Stack, outputs: Tensor) -> dict[str, np.ndarray]:
    """What the bounds need to know, and the gap to the linearised network, each ``(members, ...)``."""
    tangent = tangent_margin(stack.start, stack.tokens, stack.labels, counts=stack.counts)
    first = layer.outputs(stack.start, stack.tokens, counts=stack.counts)
    linear = linearised_outputs(first, stack.labels, tangent.gram, step_size=settings.step_size, steps=settings.steps)
    bound = first.abs().amax(1).clamp(min=1).cpu().numpy()
    target_loss = []
    for steps in settings.horizons:
        distance = (2 * bound + np.log(steps)) / tangent.margin
        target = wide.along(stack, tangent.direction, torch.tensor(distance).to(first))
        target_loss.append(wide.losses(target, stack).cpu().numpy())
    return {
        "linear_gap": (outputs - linear).abs().amax(1).cpu().numpy(),
        "margin": tangent.margin,
        "start_output": first.abs().amax(1).cpu().numpy(),
        "target_loss": np.stack(target_loss, axis=1),
    }
