"""Training sets and the networks without one of their samples: paths, recursions (18) to (22), and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.runtime import threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import leave_one_out, starts
from attnbook.multi_head.data import Drawn
from attnbook.multi_head.generalisation.training import Named, OnMixture, best_bound, losses
from attnbook.multi_head.leave_one_out import LeaveOneOut
from attnbook.multi_head.realizability import nearest_targets
from attnbook.multi_head.tangent_kernel import tangent_margin

Paths = Float[np.ndarray, "records sets samples"]


@dataclass(frozen=True)
class Recursions:
    """The right sides of the recursions for the distances of some paths recorded at every step."""

    path: LeaveOneOut
    chosen: OnMixture
    heads: Float[np.ndarray, " sets"]
    step_size: float

    @cached_property
    def constants(self) -> Named:
        """The constants of Corollary 1 at the larger of two networks, the largest on the segment between them.

        They grow with the norm of the largest head, a convex function.
        """
        norms = np.maximum(self.path.head_norm[:, :, :1], self.path.head_norm[:, :, 1:])
        return self.chosen.constants(self.heads[None, :, None], norms)

    @property
    def forcing(self) -> Paths:
        r"""The last term of eq. (22), $\frac{\eta\beta_1}n\ell_i(\theta_k)$."""
        n_samples = self.path.distance.shape[2]
        return self.step_size * self.constants["gradient"] * self.path.sample_loss / n_samples

    @cached_property
    def factors(self) -> dict[str, Paths]:
        """What each recursion puts in front of the distance."""
        return theory.recursion_factors(
            step_size=self.step_size,
            curvature=self.constants["curvature"],
            smoothness=self.constants["smoothness"],
            n_heads=self.heads[None, :, None],
            kept_loss=self.path.kept_loss,
            reduced_loss=self.path.reduced_loss,
        )

    def envelope(self, name: str) -> Paths:
        """Return one of the recursions unrolled from the common start."""
        return theory.envelope(self.factors[name][:-1], self.forcing[:-1])

    def ratios(self) -> Named:
        """Return the largest ratio, over steps and samples, of a distance and what each recursion allows.

        And the largest growth of a distance in one step over the last term of eq. (22).
        """
        before, after, forcing = self.path.distance[:-1], self.path.distance[1:], self.forcing[:-1]
        names = "recursion", "corrected", "printed"
        found = {name: after / (self.factors[name][:-1] * before + forcing) for name in names}
        found["forcing_used"] = (after - before) / forcing
        return {name: values.max((0, 2)) for name, values in found.items()}


class LeftOut:
    """Training sets of some seeds; members are the seeds, for each number of heads."""

    def __init__(self, chosen: OnMixture, seeds: tuple[int, ...], where: torch.device) -> None:
        self.chosen, self.seeds, self.where = chosen, seeds, where
        self.one_start = chosen.start(seeds, where)

    def paths(
        self, n: int, heads: Sequence[int], step_size: float, steps: int
    ) -> tuple[LeaveOneOut, Recursions, Parameters, Drawn, Tensor]:
        """Return paths and recursions, and the start, samples and counts of heads they come from."""
        drawn = self.chosen.draw(self.seeds, n, f"samples {n}", self.where)
        batch = Drawn(*(torch.cat([tensor] * len(heads)) for tensor in drawn))
        start = {name: torch.cat([tensor] * len(heads)) for name, tensor in self.one_start.items()}
        each = np.repeat([starts.even_sign_counts(h) for h in heads], len(self.seeds), axis=0)
        counts = torch.as_tensor(each).to(batch.tokens)
        path = leave_one_out.train(
            start,
            batch.tokens,
            batch.labels,
            counts=counts,
            step_size=step_size,
            steps=steps,
            record_at=range(steps + 1),
        )
        return path, Recursions(path, self.chosen, each.sum(1), step_size), start, batch, counts

    def measure(
        self, n: int, heads: Sequence[int], step_size: float, steps: int, test: Drawn
    ) -> dict[str, Float[np.ndarray, "heads seeds"]]:
        """Return what is measured with training sets of one size."""
        path, recursions, start, batch, counts = self.paths(n, heads, step_size, steps)
        of_step = leave_one_out.step_expansion(path, batch.tokens, batch.labels, counts=counts, step_size=step_size)
        targets = nearest_targets(start, batch.tokens, batch.labels, counts=counts)
        best = best_bound(targets, n_samples=n, steps=steps, step_size=step_size)
        # The heads of the target and of the start differ by its distance over root H, next to nothing inside.
        largest = {name: constant.max((0, 2)) for name, constant in recursions.constants.items()}
        found = {
            **recursions.ratios(),
            **theory.proof_conditions(
                step_size=step_size,
                steps=steps,
                n_heads=recursions.heads,
                **largest,
                start_loss=path.sample_loss[0].mean(1),
                target_loss=best["target_loss"],
                target_distance=best["target_distance"],
                pair_distance=path.distance.max((0, 2)),
            ),
            "distance": path.distance[-1].mean(1),
            "train_loss": path.sample_loss[-1].mean(1),
            "left_out_loss": path.left_out_loss[-1].mean(1),
            "test_loss": losses(
                {name: tensor[:, 0] for name, tensor in path.networks.items()},
                Drawn(*(torch.cat([tensor] * len(heads)) for tensor in test)),
                counts,
            ).numpy(force=True),
            "lipschitz": recursions.constants["gradient"][-1].max(1),
            "log_envelope": np.log10(recursions.envelope("recursion")[-1].mean(1)),
            "expansive": (of_step / recursions.factors["expansive"][-1]).max(1),
            "margin": tangent_margin(start, batch.tokens, batch.labels, counts=counts).margin,
            "theorem_2": best["theorem_2"],
            # The end of Section 6.2: the bracket of Theorem 2 times 2 eta beta_1 / n in the place of 4 / n.
            "stability_bound": step_size * largest["gradient"] / 2 * best["theorem_2"],
        }
        return {name: values.reshape(len(heads), len(self.seeds)) for name, values in found.items()}


def example_paths(
    chosen: OnMixture, *, n_samples: int = 20, heads: Sequence[int] = (4, 10**4, 10**6, 10**8), steps: int = 60
) -> xr.Dataset:
    """Return distances and unrolled recursions by step, for one training set and several numbers of heads."""
    with threads(1):
        problem = LeftOut(chosen, chosen.seeds[:1], torch.device("cpu"))
        path, recursions, *_ = problem.paths(n_samples, heads, chosen.step_size, steps)
    order = path.distance[-1, 0].argsort()  # by the final distance with the fewest heads
    found = {
        "distance": path.distance,
        "recursion": recursions.envelope("recursion"),
        "printed": recursions.envelope("printed"),
        "sample_loss": path.sample_loss,
        "left_out_loss": path.left_out_loss,
    }
    arrays = {name: (("step", "heads", "rank"), values[:, :, order]) for name, values in found.items()}
    return xr.Dataset(arrays, {"step": range(steps + 1), "heads": list(heads), "rank": range(1, n_samples + 1)})
