r"""Definition 1 and Proposition 2: is the start after the first phase a good one (P1, P2, P3)?

Networks with different numbers of heads and different draws of the random step start from the same first-phase
samples. Their head norms, outputs and margins are measured at the training samples of the second phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.experiments import samples, start_properties
from attnbook.multi_head.experiments.start_properties import Settings
from attnbook.multi_head.experiments.summaries import log_slopes

__all__ = ["GoodStart", "Settings", "run"]


@dataclass(frozen=True)
class GoodStart(Result):
    r"""What holds at the start; axes as named, ``first`` the sizes of the first phase.

    Attributes:
        residual: Norm of $p$.
        head_norm: Norm of the largest head, over whole networks.
        one_head_output: Largest $|\tilde\Phi(X_i)|$ with one head.
        one_head_right: Smallest $y_i\tilde\Phi(X_i)$ with one head of positive sign.
        sign_sum: $\sum_h\alpha_h/\sqrt H$ of random signs.
        equal_output: Largest $|\tilde\Phi(X_i)|$ with all signs positive, by whole networks.
        margin: Smallest margin of the target over samples, by whole networks with random signs.
        best: Largest margin that any target of norm $\sqrt2$ has, for the same networks.
        best_zero: The same at zero, where only the decoders have a gradient.
        uniform_mean: Mean of $|\alpha_h|$ over heads for coefficients uniform on $[-1,1]$.
        uniform_margin: Smallest margin of the target for them, with the most first samples.
    """

    experiment: ClassVar[str] = "multi_head.good_start"
    settings_type: ClassVar[type] = Settings

    residual: Float[np.ndarray, "seeds first"]
    head_norm: Float[np.ndarray, "seeds first"]
    one_head_output: Float[np.ndarray, "seeds first"]
    one_head_right: Float[np.ndarray, "seeds first"]
    sign_sum: Float[np.ndarray, "seeds heads sign_draws"]
    equal_output: Float[np.ndarray, "seeds first heads"]
    margin: Float[np.ndarray, "seeds first heads whole_draws"]
    best: Float[np.ndarray, "seeds first heads whole_draws"]
    best_zero: Float[np.ndarray, " seeds"]
    uniform_mean: Float[np.ndarray, "seeds uniform_heads uniform_draws"]
    uniform_margin: Float[np.ndarray, "seeds uniform_heads uniform_draws"]

    @property
    def head_norm_bound(self) -> Float[np.ndarray, "seeds first"]:
        """$B_2$ with the measured residual."""
        return np.vectorize(lambda p: theory.head_norm_bound(self.settings.mixture, float(p)))(self.residual)

    @property
    def output_bound(self) -> Float[np.ndarray, "seeds first"]:
        r"""$B_\Phi$ with the measured residual."""
        s = self.settings
        sizes = {"n_samples": s.n_samples, "failure": s.failure}
        return np.vectorize(lambda p: theory.output_bound(s.mixture, float(p), **sizes))(self.residual)

    @property
    def our_bounds(self) -> tuple[Float[np.ndarray, " first"], Float[np.ndarray, " first"]]:
        r"""This book's bounds in the place of these two; $P$ from its exact size by Chebyshev's inequality."""
        mixture, failure = self.settings.mixture, self.settings.failure
        likely = [theory.residual_size(mixture, n) / failure**0.5 for n in self.settings.n_first]
        heads = np.array([theory.our_head_norm_bound(mixture, p) for p in likely])
        outputs = np.array([theory.our_output_bound(mixture, p, failure=failure) for p in likely])
        return heads, outputs

    @property
    def outputs(self) -> Float[np.ndarray, "seeds first heads sign_draws"]:
        r"""Largest $|\tilde\Phi(X_i)|$ with random signs; all heads have the same output up to their sign."""
        return self.one_head_output[:, :, None, None] * np.abs(self.sign_sum)[:, None]

    @property
    def all_wrong(self) -> Float[np.ndarray, " seeds"]:
        """Share of draws, without ties, in which the start misclassifies every training sample."""
        wrong, decided = (self.sign_sum < 0).sum((1, 2)), (self.sign_sum != 0).sum((1, 2))
        return np.where((self.one_head_right > 0).all(1), wrong / decided, np.nan)

    def reading(self, coefficient: float) -> Float[np.ndarray, "uniform_heads all_draws"]:
        r"""Return the margin without noise for uniform coefficients, with $c\,\zeta u_\star$ as the step's direction.

        Args:
            coefficient: $c$: a quarter follows from the text's loss and step, one half is shown in Lemma 2.

        Returns:
            The margins over all draws of all seeds; $c=\frac14$ and $|\alpha|=1$ would give eq. (7).
        """
        linear = self.linear_without_noise
        attention = 4 * coefficient * (self.stated_without_noise - linear)
        return linear + attention * np.concatenate(list(self.uniform_mean), axis=1)

    @property
    def stated_without_noise(self) -> float:
        """Eq. (7) at these sizes, without noise and residual."""
        return oracle.first_phase_margin(replace(self.settings.mixture, label_noise=0.0, other_noise=0.0))

    @property
    def linear_without_noise(self) -> float:
        """Its part that is there at zero already."""
        return oracle.linear_margin(replace(self.settings.mixture, label_noise=0.0, other_noise=0.0))

    def relative_spread(self, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Return the range of the margin over draws of uniform coefficients, over its mean."""
        own = self.uniform_margin[:, self.settings.uniform_heads.index(n_heads)]
        return np.ptp(own, axis=1) / own.mean(1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Definition 1 and Proposition 2, by claim id."""
        at, (our_heads, our_outputs) = self.settings.heads.index(64), self.our_bounds
        return {
            "MH-P2.1": extremes_over_seeds(
                largest_ratio=self.head_norm / self.head_norm_bound, largest_ratio_ours=self.head_norm / our_heads
            ),
            "MH-P2.2": extremes_over_seeds(
                largest_ratio=self.outputs / self.output_bound[:, :, None, None],
                largest_ratio_ours=self.outputs / our_outputs[:, None, None],
            ),
            "MH-P2.2-signs": over_seeds(
                slope_equal_signs=log_slopes(self.settings.heads, self.equal_output[:, -1]),
                mean_output_random_signs_64=self.outputs[:, -1, at].mean(1),
                output_equal_signs_64=self.equal_output[:, -1, at],
            ),
            "MH-P2.2-coin": over_seeds(share_all_wrong=self.all_wrong),
            "MH-P2.3": extremes_over_seeds(largest_margin_spread=np.ptp(self.margin, axis=(2, 3))),
            "MH-P2.3-best": extremes_over_seeds(largest_margin_spread=np.ptp(self.best, axis=(2, 3))),
            "MH-P2.3-uniform": over_seeds(
                relative_spread_4=self.relative_spread(4), relative_spread_1024=self.relative_spread(1024)
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> GoodStart:
    """Measure the properties of the start.

    Args:
        settings: Sizes and seeds.
        device: Where to compute, in float64; default cuda where there is one, else the CPU.
        progress: Told (parts done, parts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), samples.double_device(device)

    with threads(1):
        parts = by_seeds(
            settings,
            partial(start_properties.measure, settings, where),
            clock=clock,
            workdir=workdir,
            progress=progress,
        )
    return GoodStart(settings=settings, provenance=clock.provenance(where), **concatenate(parts))
