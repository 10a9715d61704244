"""How much does leaving one sample out move the trained network, and what do bounds make of it?

The full network and all networks without one sample, for a few heads and for very many, at the practical step size; and
once at a step size that meets the hypotheses of the recursion. Recursion (22) is checked at every step and unrolled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import layer, leave_one_out, starts
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.recursions import Recursions
from attnbook.multi_head.experiments.stability_settings import Settings
from attnbook.multi_head.tangent_kernel import tangent_margin

__all__ = ["INSIDE", "Settings", "Stability", "run"]

INSIDE = ("recursion", "expansive", "step_smoothness", "segment_condition")
"""What is measured inside the hypotheses."""


@dataclass(frozen=True)
class Stability(Result):
    r"""What leaving one sample out does, all ``(seeds, heads, sizes)`` unless said otherwise.

    Attributes:
        train_loss: Loss of the full network on the training samples.
        test_loss: Its loss on fresh samples.
        left_out_loss: Mean over $i$ of the loss of the network without sample $i$ on sample $i$.
        reduced_test_loss: Mean over $i$ of the loss of these networks on fresh samples.
        distance: Mean over $i$ of $\|\theta_K-\theta_K^{\neg i}\|$, the average stability.
        loss_change: Mean over $i$ of $|\ell_i(\theta_K^{\neg i})-\ell_i(\theta_K)|$.
        lipschitz: $\beta_1$ of the largest head of all networks after the last step.
        log_envelope: Logarithm to base ten of the mean over $i$ of recursion (22) unrolled for $K$ steps.
        recursion: Largest ratio, over steps and samples, of a distance and what eq. (22) allows.
        expansive: Largest ratio, over samples, of what one step without sample $i$ makes of the final distance and
            what eq. (20) allows.
        corrected: As ``recursion``, for eq. (21) with the bracket where eqs. (20) and (22) ask for it.
        printed: The same for eq. (21) as shown in the text available to us.
        forcing_used: Largest growth of a distance in one step over the last term of eq. (22).
        forcing_used_later: The same without the first step, where the networks are still equal.
        step_smoothness: Largest $\eta\beta_2$ along the paths; the recursion's proof needs at most 1.
        segment_condition: Largest $2\beta_3\delta^2/\sqrt H$ along the paths; likewise (eq. (18)).
        margin: Tangent-kernel margin of the training sample at the start.
        inside: What :data:`INSIDE` lists, of the widest network in the run inside the hypotheses.
    """

    experiment: ClassVar[str] = "multi_head.stability"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds heads sizes"]
    test_loss: Float[np.ndarray, "seeds heads sizes"]
    left_out_loss: Float[np.ndarray, "seeds heads sizes"]
    reduced_test_loss: Float[np.ndarray, "seeds heads sizes"]
    distance: Float[np.ndarray, "seeds heads sizes"]
    loss_change: Float[np.ndarray, "seeds heads sizes"]
    lipschitz: Float[np.ndarray, "seeds heads sizes"]
    log_envelope: Float[np.ndarray, "seeds heads sizes"]
    recursion: Float[np.ndarray, "seeds heads sizes"]
    expansive: Float[np.ndarray, "seeds heads sizes"]
    corrected: Float[np.ndarray, "seeds heads sizes"]
    printed: Float[np.ndarray, "seeds heads sizes"]
    forcing_used: Float[np.ndarray, "seeds heads sizes"]
    forcing_used_later: Float[np.ndarray, "seeds heads sizes"]
    step_smoothness: Float[np.ndarray, "seeds heads sizes"]
    segment_condition: Float[np.ndarray, "seeds heads sizes"]
    margin: Float[np.ndarray, "seeds heads sizes"]
    inside: Float[np.ndarray, "seeds quantities"]

    @property
    def gap(self) -> Float[np.ndarray, "seeds heads sizes"]:
        """Test minus training loss of the full network."""
        return self.test_loss - self.train_loss

    @property
    def left_out_gap(self) -> Float[np.ndarray, "seeds heads sizes"]:
        """Left-out minus training loss, what the training set alone says about the gap."""
        return self.left_out_loss - self.train_loss

    @property
    def lemma_3(self) -> Float[np.ndarray, "seeds heads sizes"]:
        r"""Lemma 3's bound on the gap from the measured distances, $2\beta_1$ times their mean."""
        return theory.lemma_3(lipschitz=self.lipschitz, stability=self.distance)

    @property
    def log_unrolled(self) -> Float[np.ndarray, "seeds heads sizes"]:
        """Logarithm to base ten of Lemma 3's bound with recursion (22), unrolled, in the place of the distances."""
        return np.log10(2 * self.lipschitz) + self.log_envelope

    @property
    def corollary_2(self) -> Float[np.ndarray, "seeds heads sizes"]:
        r"""Corollary 2's bound, with the margin of each training sample; the start returns zero, so that $B_\Phi=1$."""
        bounds = [
            theory.corollary_2(
                n_samples=n, steps=self.settings.steps, step_size=self.settings.step_size, margin=self.margin[..., j]
            )
            for j, n in enumerate(self.settings.sizes)
        ]
        return np.stack(bounds, axis=2)

    @property
    def slopes(self) -> Float[np.ndarray, "seeds heads"]:
        """Slopes of the logarithm of the mean distance in log n, by least squares."""
        centred = np.log(self.settings.sizes) - np.mean(np.log(self.settings.sizes))
        return np.log(self.distance) @ centred / (centred @ centred)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id; spreads are ranges over seeds of each seed's own largest."""
        few, wide = 0, 1
        inside = {f"largest_{name}": self.inside[:, i] for i, name in enumerate(INSIDE)}
        of_one_seed = extremes_over_seeds(largest_ratio_of_one_seed=self.gap / self.lemma_3)
        of_means = {"largest_ratio": float((self.gap.mean(0) / self.lemma_3.mean(0)).max())}
        excess = self.log_envelope - np.log10(self.distance)
        return {
            "MH-ST.1": over_seeds(slope=self.slopes[:, few]),
            "MH-ST.1-wide": over_seeds(slope=self.slopes[:, wide]),
            "MH-ST.2": extremes_over_seeds(largest_ratio=self.recursion),
            "MH-ST.2-tight": extremes_over_seeds(largest_ratio_wide=self.recursion[:, wide]),
            "MH-ST.2-forcing": extremes_over_seeds(
                largest_forcing_used=self.forcing_used, largest_after_the_first_step=self.forcing_used_later
            ),
            "MH-ST.2-unrolled": over_seeds(
                log_excess_few=excess[:, few].min(1), log_excess_wide=excess[:, wide].max(1)
            ),
            "MH-ST.2-inside": extremes_over_seeds(
                **{
                    name: inside[name]
                    for name in ("largest_recursion", "largest_step_smoothness", "largest_segment_condition")
                }
            ),
            "MH-ST.2-expansive": extremes_over_seeds(
                largest_ratio=self.expansive, largest_ratio_inside=inside["largest_expansive"]
            ),
            "MH-ST.3": extremes_over_seeds(
                largest_ratio_printed=self.printed[:, wide], largest_ratio_corrected=self.corrected[:, wide]
            ),
            "MH-ST.4": dataclasses.replace(of_one_seed, values={**of_means, **of_one_seed.values}),
            "MH-LOO": _of_means(
                smallest_left_out_over_gap=(self.left_out_gap.sum(2), self.gap.sum(2)),
                largest_left_out_over_gap=(self.left_out_gap.sum(2), self.gap.sum(2)),
                smallest_lemma_3_over_gap=(self.lemma_3.sum(2), self.gap.sum(2)),
            ),
        }


def _of_means(**ratios: tuple[np.ndarray, np.ndarray]) -> Measurement:
    """The extreme ratio of two means over seeds, with the range over seeds of each seed's own extreme."""
    of_means = {name: (above.mean(0) / below.mean(0))[None] for name, (above, below) in ratios.items()}
    of_seeds = extremes_over_seeds(**{name: above / below for name, (above, below) in ratios.items()})
    return Measurement(extremes_over_seeds(**of_means).values, of_seeds.spread, of_seeds.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Stability:
    """Train full and reduced networks for every size and both numbers of heads.

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
        problem, found = Problem(settings, seeds, where), []
        for number, n in enumerate(settings.sizes, 1):
            measured = problem.measure(n)
            found.append({name: v.reshape(len(settings.heads), len(seeds)).T for name, v in measured.items()})
            if inner:
                inner(number, len(settings.sizes))
        arrays = {name: np.stack([one[name] for one in found], axis=2) for name in found[0]}
        return arrays | {"inside": problem.inside()}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return Stability(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


class Problem:
    """Training sets of some seeds, first for the smaller number of heads, then for the larger.

    Attributes:
        settings: Sizes.
        seeds: Seeds.
        start: Where training starts, one member for each seed.
        test: Fresh samples.
    """

    def __init__(self, settings: Settings, seeds: tuple[int, ...], where: torch.device) -> None:
        first = samples.draw(settings.mixture, settings.first_samples, seeds, purpose="first phase", device=where)
        self.settings, self.seeds = settings, seeds
        self.start = starts.first_phase(first.tokens, first.labels)
        self.test = samples.draw(settings.mixture, settings.test_samples, seeds, purpose="test", device=where)

    def paths(
        self, n: int, heads: tuple[int, ...], *, step_size: float, steps: int
    ) -> tuple[leave_one_out.LeaveOneOut, Recursions, samples.Drawn, Tensor]:
        """Return the paths for each number of heads and seed, the recursions, the samples and the counts of heads."""
        drawn = samples.draw(
            self.settings.mixture, n, self.seeds, purpose=f"samples {n}", device=self.test.tokens.device
        )
        batch = samples.Drawn(*(torch.cat([tensor] * len(heads)) for tensor in drawn))
        each = np.repeat([starts.even_sign_counts(h) for h in heads], len(self.seeds), axis=0)
        counts = torch.as_tensor(each).to(batch.tokens)
        found = leave_one_out.train(
            {name: torch.cat([tensor] * len(heads)) for name, tensor in self.start.items()},
            batch.tokens,
            batch.labels,
            counts=counts,
            step_size=step_size,
            steps=steps,
            record_at=range(steps + 1),
        )
        return found, Recursions(found, self.settings.mixture, each.sum(1), step_size), batch, counts

    def inside(self) -> np.ndarray:
        """Return what :data:`INSIDE` lists for the widest network, ``(seeds, quantities)``."""
        chosen = self.settings
        path, recursions, batch, counts = self.paths(
            chosen.inside_size, chosen.heads[-1:], step_size=chosen.inside_step_size, steps=chosen.inside_steps
        )
        found = recursions.ratios() | recursions.conditions() | _expansive(path, recursions, batch, counts)
        return np.stack([found[name] for name in INSIDE], axis=1)

    def measure(self, n: int) -> dict[str, np.ndarray]:
        """Return what is measured with training sets of one size, one value for each number of heads and seed."""
        path, recursions, batch, counts = self.paths(
            n, self.settings.heads, step_size=self.settings.step_size, steps=self.settings.steps
        )
        start = {name: torch.cat([tensor] * len(self.settings.heads)) for name, tensor in self.start.items()}
        return {
            **recursions.ratios(),
            **_expansive(path, recursions, batch, counts),
            **recursions.conditions(),
            **self._losses(path, counts),
            "distance": path.distance[-1].mean(1),
            "train_loss": path.sample_loss[-1].mean(1),
            "left_out_loss": path.left_out_loss[-1].mean(1),
            "loss_change": np.abs(path.left_out_loss[-1] - path.sample_loss[-1]).mean(1),
            "lipschitz": recursions.constants["gradient"][-1].max(1),
            "log_envelope": np.log10(recursions.envelope("recursion")[-1].mean(1)),
            "margin": tangent_margin(start, batch.tokens, batch.labels, counts=counts).margin,
        }

    def _losses(self, path: leave_one_out.LeaveOneOut, counts: Tensor) -> Mapping[str, np.ndarray]:
        """Return losses on fresh samples: of the full networks, and of the reduced ones, their mean."""
        full, reduced = [], []
        for index, networks in enumerate(path.reduced):
            one = {name: tensor[index : index + 1] for name, tensor in path.full.items()}
            at = index % len(self.seeds)
            full.append(self._loss(one, counts[index], at, self.settings.test_samples))
            reduced.append(self._loss(networks, counts[index], at, self.settings.reduced_test_samples))
        return {"test_loss": np.array(full), "reduced_test_loss": np.array(reduced)}

    def _loss(self, networks: Parameters, counts: Tensor, seed: int, n_samples: int) -> float:
        """Return the mean loss of some networks on the first fresh samples of a seed."""
        members = len(networks["decoder"])
        tokens = self.test.tokens[seed, :n_samples].expand(members, -1, -1, -1)
        outputs = layer.outputs(networks, tokens, counts=counts.expand(members, -1))
        return float(-logsigmoid(self.test.labels[seed, :n_samples] * outputs).mean())


def _expansive(
    path: leave_one_out.LeaveOneOut, recursions: Recursions, batch: samples.Drawn, counts: Tensor
) -> dict[str, np.ndarray]:
    """Return the largest ratio of the two sides of eq. (20) for the final networks of each set."""
    expansion = leave_one_out.step_expansion(
        path, batch.tokens, batch.labels, counts=counts, step_size=recursions.step_size
    )
    return {"expansive": (expansion / recursions.factors["expansive"][-1]).max(1)}
