"""Eqs. (20), (21) and (22) at every step of leave-one-out paths, and (22) unrolled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.leave_one_out import LeaveOneOut

__all__ = ["Recursions"]

Paths = Float[np.ndarray, "records sets samples"]

# On a segment the loss is at most 4/3 of its larger end (Proposition 4, where its condition holds).
SEGMENT = 4 / 3


@dataclass(frozen=True)
class Recursions:
    r"""The right sides of the recursions for the distances of some paths.

    Constants are those at the larger of the two networks, which is their largest value on the segment between them:
    they grow with the norm of the largest head, a convex function. The largest loss on a segment is replaced by the
    larger end, which makes the tests of (20) and of the corrected (21) stricter; for (21) as shown in the text
    available to us it is 4/3 of it, which is in its favour.

    Attributes:
        path: Paths recorded at every step.
        mixture: Their data model; its bound on the norm of a token is $R$.
        heads: Number of heads of each set.
        step_size: $\eta$.

    Raises:
        ValueError: If a step was not recorded.
    """

    path: LeaveOneOut
    mixture: Mixture
    heads: Float[np.ndarray, " sets"]
    step_size: float

    def __post_init__(self) -> None:
        if not np.array_equal(self.path.steps, np.arange(len(self.path.steps))):
            raise ValueError(f"path: expected a record at every step, got steps {self.path.steps.tolist()}")

    @cached_property
    def constants(self) -> dict[str, Paths]:
        """The constants of Corollary 1, by attribute of ``LossConstants``."""
        norms = np.maximum(self.path.head_norm[:, :, None], self.path.reduced_head_norm)
        arrays = {name: np.empty_like(norms) for name in ("gradient", "smoothness", "curvature")}
        for index, norm in np.ndenumerate(norms):
            found = loss_constants(
                n_tokens=self.mixture.n_tokens,
                dimension=self.mixture.dimension,
                n_heads=int(self.heads[index[1]]),
                token_norm=self.mixture.token_norm,
                largest_head_norm=norm,
            )
            for name, array in arrays.items():
                array[index] = getattr(found, name)
        return arrays

    @property
    def forcing(self) -> Paths:
        r"""The last term of eq. (22), $\frac{\eta\beta_1}n\ell_i(\theta_k)$."""
        n_samples = self.path.distance.shape[2]
        return self.step_size * self.constants["gradient"] * self.path.sample_loss / n_samples

    @cached_property
    def factors(self) -> dict[str, Paths]:
        """What each recursion puts in front of the distance."""
        curvature, heads, eta = self.constants["curvature"], self.heads[None, :, None], self.step_size
        kept, reduced = self.path.kept_loss, self.path.reduced_loss
        larger = np.maximum(kept, reduced)

        def expansive(smoothness: Paths) -> Paths:
            return theory.expansive_factor(
                step_size=eta, curvature=curvature, smoothness=smoothness, n_heads=heads, largest_loss=larger
            )

        return {
            "recursion": 1
            + theory.expansion(step_size=eta, curvature=curvature, n_heads=heads, kept_loss=kept, reduced_loss=reduced),
            "expansive": expansive(self.constants["smoothness"]),
            "corrected": expansive(np.zeros_like(larger)),
            "printed": theory.printed_factor(
                step_size=eta, curvature=curvature, n_heads=heads, largest_loss=SEGMENT * larger
            ),
        }

    def envelope(self, name: str) -> Paths:
        """Return one of the recursions unrolled from the common start."""
        return theory.envelope(self.factors[name][:-1], self.forcing[:-1])

    def ratios(self) -> dict[str, Float[np.ndarray, " sets"]]:
        """Return the largest ratio, over steps and samples, of a distance and what each recursion allows.

        And that of the growth of a distance and the last term, over all steps and without the first.
        """
        before, after, forcing = self.path.distance[:-1], self.path.distance[1:], self.forcing[:-1]
        found = {
            name: after / (self.factors[name][:-1] * before + forcing) for name in ("recursion", "corrected", "printed")
        }
        found["forcing_used"] = (after - before) / forcing
        found["forcing_used_later"] = found["forcing_used"][1:]
        return {name: values.max((0, 2)) for name, values in found.items()}

    def conditions(self) -> dict[str, Float[np.ndarray, " sets"]]:
        r"""Return the largest $\eta\beta_2$ and $2\beta_3\delta^2/\sqrt H$; the proof of (22) needs both at most 1."""
        apart = 2 * self.constants["curvature"] * self.path.distance**2 / np.sqrt(self.heads)[None, :, None]
        smoothness = self.step_size * self.constants["smoothness"]
        return {"step_smoothness": smoothness.max((0, 2)), "segment_condition": apart.max((0, 2))}
