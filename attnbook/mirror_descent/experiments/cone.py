r"""Inside the cone: what Lemmas 19, 20 and 21 promise, how wide the guaranteed cone is, and what happens outside it.

Nothing is trained. Matrices are drawn at the boundary of cones around max-margin solutions, perturbed where it does
most harm. Two choices of tokens: the best of every sample, and a locally optimal one with a second-best token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.data import Problems, draw_problems, joined
from attnbook.mirror_descent.experiments.sampling import in_the_cone, second_choice

__all__ = ["CHOICES", "PARTS", "Cone", "Settings", "run"]

CHOICES = ("best tokens", "one second-best token")
PARTS = ("12a", "12b", "12c")
# Relative norms and the exponent that the claims name.
NEEDED_RADII = (5.0, 10.0, 20.0, 400.0)
NEEDED_P = 1.25


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents, increasing.
        directions: Perturbations per problem for Lemma 19, each lowering one gap between two tokens.
        tested: Perturbations for Lemmas 20 and 21, each lowering one gap of a selected token.
        others: Second matrices $V$ of Lemma 20 per problem.
        radii: Relative norms, increasing.
        wide: Divergence of a cone much wider than guaranteed.
        seeds: One problem per seed.
        chunk: Seeds taken together.
    """

    ps: tuple[float, ...] = (1.25, 1.75, 2.0, 3.0)
    directions: int = 120
    tested: int = 30
    others: int = 20
    radii: tuple[float, ...] = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0)
    wide: float = 0.02
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if NEEDED_P not in self.ps or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {NEEDED_P} among them, got {self.ps}")
        if set(NEEDED_RADII) - set(self.radii) or list(self.radii) != sorted(set(self.radii)):
            raise ValueError(f"radii: expected increasing numbers with {NEEDED_RADII} among them, got {self.radii}")
        if not 1 <= max(self.tested, self.others) <= self.directions:
            raise ValueError(f"tested, others: expected between 1 and directions = {self.directions}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(1.25, 3.0), directions=6, tested=3, others=2, radii=NEEDED_RADII, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more problems and more samples; the paper has proofs in their place."""
        return cls(directions=336, tested=100, others=40, seeds=tuple(range(20)))


@dataclass(frozen=True)
class Cone(Result):
    r"""Constants of the cone and the worst samples found in it; the second axis counts the choices of tokens.

    Attributes:
        delta: $\delta$ of (4a), ``(seeds, choices, ps)``; infinite where every token is a support token.
        literal: $\mu_0$ as reconstructed, ``(seeds, choices, ps)``.
        sharp: $\mu_0$ with the sharper constants of Lemma 13, ``(seeds, choices, ps)``.
        sampled: Smallest divergence at which a sample violates Lemma 19, ``(seeds, choices, ps)``.
        radius: Sufficient relative norm for Lemma 20 with $C=1$, ``(seeds, choices, ps)``.
        locally_optimal: Whether the choice is locally optimal, ``(seeds, choices, ps)``.
        slacks: Smallest slack of the parts of Lemma 19 in the literal and the sharper cone,
            ``(seeds, choices, ps, 2, parts)``.
        not_positive: How many pairs violate Lemma 20 in the sharper and in the wide cone,
            ``(seeds, choices, ps, 2, radii)``.
        log_least: Log of the smallest positive $-\langle\nabla\mathcal L(W),V\rangle$ in the sharper cone,
            ``(seeds, choices, ps, radii)``.
        ratio: Smallest workable $\pi$ of Lemma 21, ``(seeds, choices, ps, 2, radii)``: in the sharper cone, and in the
            wide one for perturbations of size $1/\rho$ at most, with $\rho$ the relative norm.
    """

    experiment: ClassVar[str] = "mirror_descent.cone"
    settings_type: ClassVar[type] = Settings

    delta: Float[np.ndarray, "seeds choices ps"]
    literal: Float[np.ndarray, "seeds choices ps"]
    sharp: Float[np.ndarray, "seeds choices ps"]
    sampled: Float[np.ndarray, "seeds choices ps"]
    radius: Float[np.ndarray, "seeds choices ps"]
    locally_optimal: Float[np.ndarray, "seeds choices ps"]
    slacks: Float[np.ndarray, "seeds choices ps 2 parts"]
    not_positive: Float[np.ndarray, "seeds choices ps 2 radii"]
    log_least: Float[np.ndarray, "seeds choices ps radii"]
    ratio: Float[np.ndarray, "seeds choices ps 2 radii"]

    @property
    def pairs(self) -> int:
        """Pairs of matrices per seed, choice, exponent and norm in Lemma 20."""
        return 3 * self.settings.tested * self.settings.others

    def at(self, radius: float) -> int:
        """Return the place of a relative norm."""
        return self.settings.radii.index(radius)

    def log_constant(self, power: float) -> Float[np.ndarray, "seeds choices ps radii"]:
        """Return the log of the smallest product plus ``power`` times the relative norm."""
        return self.log_least + power * np.array(self.settings.radii)

    def slack_products(self) -> tuple[Float[np.ndarray, "seeds radii"], Float[np.ndarray, "seeds radii"]]:
        r"""Return the worst $\pi$ of Lemma 21 times the relative norm, over exponents.

        Returns:
            In the sharper cone, both choices of tokens; in the wide cone, best tokens, perturbations of size $1/\rho$.
        """
        radii = np.array(self.settings.radii)
        return self.ratio[:, :, :, 0].max(axis=(1, 2)) * radii, self.ratio[:, 0, :, 1].max(axis=1) * radii

    def measurements(self) -> dict[str, Measurement]:
        """Return the worst cases, by claim id."""
        found = {}
        for part, name in enumerate(PARTS):
            found[f"MD-L19-{name}"] = _smallest(min_slack=self.slacks[..., 0, part])
        found["MD-L19-sharp"] = _smallest(min_slack=self.slacks[..., 1, :])
        found["MD-L19-tight"] = _smallest(min_ratio_sampled_to_sharper=self.sampled / self.sharp)
        widths = _smallest(min_ratio_sampled_to_guaranteed=self.sampled / self.literal)
        largest = extremes_over_seeds(max_guaranteed_divergence=self.literal)
        found["MD-L19-needle"] = Measurement(
            {**largest.values, **widths.values}, {**largest.spread, **widths.spread}, widths.n_seeds
        )
        return found | self._gradients()

    def _gradients(self) -> dict[str, Measurement]:
        """Lemmas 20 and 21, for both choices of tokens unless said otherwise."""
        far = np.array(self.settings.radii) >= 10
        narrow, wide = (self.not_positive[:, :, :, cone] for cone in (0, 1))
        small = self.settings.ps.index(NEEDED_P)
        # Perturbations of size 1 / rho fit into the wide cone at every rho, and into the guaranteed one only far out.
        product, in_wide = self.slack_products()
        slack = product / np.array(self.settings.radii)
        at = {f"r{radius:g}": self.at(radius) for radius in NEEDED_RADII}

        def constants(power: float) -> Measurement:
            least = self.log_constant(power).min(axis=(1, 2))
            worst = np.ptp(self.log_constant(power)[..., at["r20"] :], axis=-1).max(axis=(1, 2))
            values = {"log_constant_r20": least[:, at["r20"]], "log_constant_r400": least[:, at["r400"]]}
            return over_seeds(**values, **({"largest_change": worst} if power == 1 else {}))

        return {
            "MD-L20": _count(count_not_positive=narrow[..., far]),
            "MD-L20-wide": _shares(
                self.pairs,
                share_not_positive=wide[:, 0, small, far],
                all_exponents=wide[:, 0][..., far],
                one_second_best_token=wide[:, 1][..., far],
            ),
            "MD-L20-bound": constants(1.5),
            "MD-L20+": constants(1.0),
            "MD-L21": over_seeds(
                max_slack_times_relative_norm=product.max(axis=1),
                slack_r5=slack[:, at["r5"]],
                slack_r400=slack[:, at["r400"]],
            ),
            "MD-L21-rate": _from_10_to_400(product, at),
            "MD-L21-rate-wide": _from_10_to_400(in_wide, at),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Cone:
    """Sample cones around max-margin solutions and look for violations of Lemmas 19, 20 and 21.

    Args:
        settings: Sizes and exponents.
        device: Only named in the provenance: the samples are taken on the CPU, in float64.
        progress: Told (work done, work in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)

    def sample(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            columns = []
            for number, p in enumerate(settings.ps, 1):
                columns.append(_one_exponent(settings, seeds, p))
                if inner:
                    inner(number, len(settings.ps))
        return {name: np.stack([column[name] for column in columns], axis=2) for name in columns[0]}

    parts = by_seeds(settings, sample, clock=clock, workdir=workdir, progress=progress)
    return Cone(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _one_exponent(settings: Settings, seeds: tuple[int, ...], p: float) -> dict[str, np.ndarray]:
    """All that concerns one exponent, axes (seeds, choices, ...)."""
    one: Problems = draw_problems(seeds)
    selected = np.concatenate([one.best_tokens, second_choice(one, p)])
    found = in_the_cone(
        joined([one, one]),
        selected,
        (*seeds, *seeds),
        p,
        directions=settings.directions,
        tested=settings.tested,
        others=settings.others,
        radii=settings.radii,
        wide=settings.wide,
    )
    return {
        name: np.swapaxes(values.reshape(len(CHOICES), len(seeds), *values.shape[1:]), 0, 1)
        for name, values in found.items()
    }


def _from_10_to_400(product: np.ndarray, at: dict[str, int]) -> Measurement:
    """Slack times relative norm, ``(seeds, radii)``, at the ends of the range of norms that is compared."""
    return over_seeds(**{f"slack_times_relative_norm_{name}": product[:, at[name]] for name in ("r10", "r400")})


def _smallest(**samples: np.ndarray) -> Measurement:
    """The smallest over everything, with the range over seeds of each seed's own; names say so themselves."""
    found = extremes_over_seeds(**{f"smallest{name}": values for name, values in samples.items()})
    return Measurement(
        {name.removeprefix("smallest"): value for name, value in found.values.items()},
        {name.removeprefix("smallest"): value for name, value in found.spread.items()},
        found.n_seeds,
    )


def _count(**samples: np.ndarray) -> Measurement:
    """Violations of all seeds together, with the range over seeds."""
    per_seed = {name: values.reshape(len(values), -1).sum(axis=1) for name, values in samples.items()}
    return Measurement(
        {name: float(values.sum()) for name, values in per_seed.items()},
        {name: (float(values.min()), float(values.max())) for name, values in per_seed.items()},
        len(next(iter(per_seed.values()))),
    )


def _shares(pairs: int, **counts: np.ndarray) -> Measurement:
    """Share of pairs over all seeds, with the range over seeds of each seed's own."""
    per_seed = {name: values.reshape(len(values), -1).mean(axis=1) / pairs for name, values in counts.items()}
    return Measurement(
        {name: float(values.mean()) for name, values in per_seed.items()},
        {name: (float(values.min()), float(values.max())) for name, values in per_seed.items()},
        len(next(iter(per_seed.values()))),
    )
