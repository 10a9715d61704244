"""Training sets and the networks without one of their samples: paths, recursions (18) to (22), and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from attnbook.core.runtime import threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import leave_one_out
from attnbook.multi_head.data import Drawn
from attnbook.multi_head.leave_one_out import LeaveOneOut
from attnbook.multi_head.on_mixture import AfterFirstPhase, Stack, even_signs, stacked
from attnbook.multi_head.realizability import Targets, nearest_targets

Named = dict[str, np.ndarray]


@dataclass(frozen=True)
class Recursions:
    """The right sides of the recursions for the distances of some paths, step by step."""

    constants: Named  # of Corollary 1 at the larger of two networks: they grow with the largest head, a convex function
    factors: Named  # what each recursion puts in front of the distance
    forcing: Float[np.ndarray, "records sets samples"]  # the last term of eq. (22)

    def envelope(self, name: str) -> np.ndarray:
        """Return one of the recursions unrolled from the common start."""
        return theory.envelope(self.factors[name][:-1], self.forcing[:-1])


def recursions(chosen: AfterFirstPhase, path: LeaveOneOut, heads: np.ndarray, step_size: float) -> Recursions:
    """Return the recursions along paths that were recorded at every step."""
    norms = np.maximum(path.head_norm[:, :, :1], path.head_norm[:, :, 1:])
    constants, losses = chosen.constants(heads[:, None], norms), (path.kept_loss, path.reduced_loss)
    factors = theory.recursion_factors(
        step_size=step_size, curvature=constants["curvature"], smoothness=constants["smoothness"],
        n_heads=heads[:, None], kept_loss=losses[0], reduced_loss=losses[1],
    )  # fmt: skip
    forcing = step_size * constants["gradient"] * path.sample_loss / path.distance.shape[2]
    return Recursions(constants, factors, forcing)


def paths(
    chosen: AfterFirstPhase, seeds: Sequence[int], n: int, heads: Sequence[int], step_size: float, steps: int,
    where: torch.device,
) -> tuple[LeaveOneOut, Recursions, Stack]:  # fmt: skip
    """Train the full and the reduced networks of each seed and number of heads."""
    drawn = chosen.draw(seeds, n, f"samples {n}", where)
    stack = stacked(drawn, chosen.first(seeds, where), even_signs(seeds, heads))
    path = leave_one_out.train(
        stack.start, stack.tokens, stack.labels, counts=stack.counts, step_size=step_size, steps=steps,
        record_at=range(steps + 1),
    )  # fmt: skip
    return path, recursions(chosen, path, np.asarray(stack.counts.sum(1).cpu()), step_size), stack


def measured(
    found: tuple[LeaveOneOut, Recursions, Stack], step_size: float, test: Drawn
) -> dict[str, Float[np.ndarray, "seeds heads"]]:
    """Return what is measured along some paths: ratios to the recursions, conditions, losses and bounds."""
    path, right, stack = found
    n, steps, samples = stack.labels.shape[1], len(path.steps) - 1, (stack.tokens, stack.labels)
    before, after, forcing = path.distance[:-1], path.distance[1:], right.forcing[:-1]
    names = "recursion", "corrected", "printed"
    ratios = {name: after / (right.factors[name][:-1] * before + forcing) for name in names}
    ratios["forcing_used"] = (after - before) / forcing
    targets = nearest_targets(stack.start, *samples, counts=stack.counts)
    best = best_bound(targets, n_samples=n, steps=steps, step_size=step_size)
    # The heads of the target and of the start differ by its distance over root H, next to nothing inside.
    largest = {name: constant.max((0, 2)) for name, constant in right.constants.items()}
    conditions = theory.proof_conditions(
        step_size=step_size, steps=steps, n_heads=np.asarray(stack.counts.sum(1).cpu()), **largest,
        start_loss=path.sample_loss[0].mean(1), target_loss=best["target_loss"],
        target_distance=best["target_distance"], pair_distance=path.distance.max((0, 2)),
    )  # fmt: skip
    expansion = leave_one_out.step_expansion(path, *samples, counts=stack.counts, step_size=step_size)
    networks = {name: tensor[:, 0] for name, tensor in path.networks.items()}
    values = conditions | {name: ratio.max((0, 2)) for name, ratio in ratios.items()} | {
        "distance": path.distance[-1].mean(1),
        "train_loss": path.sample_loss[-1].mean(1),
        "left_out_loss": path.left_out_loss[-1].mean(1),
        "test_loss": stack.on(test).losses(networks).numpy(force=True),
        "lipschitz": right.constants["gradient"][-1].max(1),
        "log_envelope": np.log10(right.envelope("recursion")[-1].mean(1)),
        "expansive": (expansion / right.factors["expansive"][-1]).max(1),
        "margin": stack.tangent().margin,
        "theorem_2": best["theorem_2"],
        # The end of Section 6.2: the bracket of Theorem 2 times 2 eta beta_1 / n in the place of 4 / n.
        "stability_bound": step_size * largest["gradient"] / 2 * best["theorem_2"],
    }  # fmt: skip
    return {name: value.reshape(len(test.tokens), -1) for name, value in values.items()}


def best_bound(targets: Targets, *, n_samples: int, steps: int, step_size: float) -> Named:
    r"""Return the smallest bound of Theorem 2 over targets with $\eta K\hat L\le D^2$, and its target."""
    target = {"target_loss": targets.loss, "target_distance": targets.distance}
    bounds = theory.theorem_2(n_samples=n_samples, steps=steps, step_size=step_size, **target)
    allowed = step_size * steps * targets.loss <= targets.distance**2
    best = np.where(allowed, bounds, np.inf).argmin(1)[:, None]
    found = {"theorem_2": bounds, **target}
    return {name: np.take_along_axis(values, best, 1)[:, 0] for name, values in found.items()}


def example_paths(
    chosen: AfterFirstPhase, step_size: float, *, n_samples: int = 20, heads: Sequence[int] = (4, 10**4, 10**6, 10**8),
    steps: int = 60,
) -> xr.Dataset:  # fmt: skip
    """Return distances and unrolled recursions by step, for one training set and several numbers of heads."""
    with threads(1):
        path, right, _ = paths(chosen, chosen.seeds[:1], n_samples, heads, step_size, steps, torch.device("cpu"))
    order = path.distance[-1, 0].argsort()  # by the final distance with the fewest heads
    found = {"distance": path.distance, "recursion": right.envelope("recursion"), "printed": right.envelope("printed"),
             "sample_loss": path.sample_loss, "left_out_loss": path.left_out_loss}  # fmt: skip
    arrays = {name: (("step", "heads", "rank"), values[:, :, order]) for name, values in found.items()}
    return xr.Dataset(arrays, {"step": range(steps + 1), "heads": list(heads), "rank": range(1, n_samples + 1)})
