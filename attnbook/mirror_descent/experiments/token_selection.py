"""Which tokens attention can select, which of them training keeps, and with what margin.

The attention SVM by itself (duality, feasibility), and Definition 3 at work: every choice of tokens of small problems
is solved, and mirror descent is started from multiples of each solution to see whether the tokens stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent import objective as theory
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.attention_svm import attention_constraints, attention_svm, locally_optimal, selectable
from attnbook.mirror_descent.data import Problems, draw_problems, joined, plane_tokens

__all__ = ["Settings", "TokenSelection", "run"]

# The token of the plane that the claims are about, and the token no matrix selects.
CONTESTED, INSIDE = 1, 5
KEPT_BELOW, LEFT_ABOVE = 1.5, 3.0


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing; 1.5 and 3 must be among them.
        tried: Exponents for which every choice of tokens is trained.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token.
        crowded: Samples, tokens and dimension of problems with more samples than dimensions but at most as many
            constraints as entries of the matrix, and of problems with more constraints.
        choices: Random choices of tokens per seed.
        small: Samples, tokens and dimension of the problems whose choices are all tried.
        pairs: Numbers of samples with two tokens each, for the count of choices.
        pair_dimension: Dimension of these tokens.
        relative_norms: Norms of the starts over the norm of the max-margin solution, increasing.
        steps: Scale-free steps.
        plane_steps: Scale-free steps in the plane, where solutions are long.
        step_size: Their size, the same for every exponent.
        seeds: One problem per seed.
    """

    ps: tuple[float, ...] = (1.1, 1.25, 1.5, 2.0, 3.0, 6.0)
    tried: tuple[float, ...] = (1.5, 2.0, 3.0)
    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10
    crowded: tuple[tuple[int, int, int], tuple[int, int, int]] = ((4, 3, 3), (12, 3, 3))
    choices: int = 20
    small: tuple[int, int, int] = (2, 3, 5)
    pairs: tuple[int, ...] = (6, 9, 12, 15, 18, 21, 24, 27, 30)
    pair_dimension: int = 3
    relative_norms: tuple[float, ...] = (5.0, 20.0, 80.0)
    steps: int = 1000
    plane_steps: int = 2500
    step_size: float = 0.2
    seeds: tuple[int, ...] = tuple(range(20))

    def __post_init__(self) -> None:
        if list(self.ps) != sorted(set(self.ps)) or not {KEPT_BELOW, LEFT_ABOVE} <= set(self.ps) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1, with 1.5 and 3, got {self.ps}")
        if self.choices < 1 or min(self.pairs) < 1:
            raise ValueError(f"choices, pairs: expected at least 1, got {self.choices}, {self.pairs}")
        norms = self.relative_norms
        if list(norms) != sorted(set(norms)) or norms[0] <= 0:
            raise ValueError(f"relative_norms: expected increasing numbers above 0, got {norms}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            ps=(1.5, 3.0),
            tried=(2.0,),
            n_samples=2,
            n_tokens=3,
            dimension=5,
            crowded=((3, 2, 2), (6, 2, 2)),
            choices=3,
            small=(1, 3, 3),
            pairs=(3, 6),
            pair_dimension=2,
            relative_norms=(5.0, 10.0),
            steps=20,
            plane_steps=20,
            seeds=(0, 1),
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and steps; the paper gives no sizes."""
        return cls(choices=200, small=(3, 4, 5), steps=10_000, plane_steps=10_000, seeds=tuple(range(20)))


@dataclass(frozen=True)
class TokenSelection(Result):
    r"""Choices of tokens, their margins and their fate.

    Attributes:
        duality_gap: Relative gap of primal and dual objective, each as it reads, ``(seeds, ps)``.
        single_error: Relative error for a single constraint against the closed form, ``(seeds, ps)``.
        feasible: Share of random choices that some matrix makes in the two crowded problems, ``(seeds, 2)``.
        pair_share: The same for two tokens per sample, ``(seeds, pairs)``.
        margin: $1/\|W^\alpha_{mm}\|_{p,p}$ of every choice in small problems, ``(seeds, tried, choices)``.
        local: Whether the choice is locally optimal, ``(seeds, tried, choices)``.
        kept: Whether training from a multiple of its solution keeps it, ``(seeds, relative norms, tried, choices)``.
        best: Number of the choice of best tokens, ``(seeds,)``.
        limit_loss: Loss of perfect attention to the chosen tokens, ``(seeds, choices)``.
        best_local: Share of exponents for which the best tokens of the large problem are locally optimal, ``(seeds,)``.
        plane: First columns of the solutions in the plane, ``(ps, tokens, 2)``; the token inside the others has none.
        plane_support: Their support tokens, ``(ps, tokens, tokens)``.
        plane_local: Whether the token is locally optimal, ``(ps, tokens)``.
        plane_attention: Attention along training from each token's solution at the largest relative norm, ``(ps,
            tokens, records, tokens)``.
        steps: Steps recorded in the plane, ``(records,)``.
    """

    experiment: ClassVar[str] = "mirror_descent.token_selection"
    settings_type: ClassVar[type] = Settings

    duality_gap: Float[np.ndarray, "seeds ps"]
    single_error: Float[np.ndarray, "seeds ps"]
    feasible: Float[np.ndarray, "seeds 2"]
    pair_share: Float[np.ndarray, "seeds pairs"]
    margin: Float[np.ndarray, "seeds tried choices"]
    local: Float[np.ndarray, "seeds tried choices"]
    kept: Float[np.ndarray, "seeds relative_norms tried choices"]
    best: Float[np.ndarray, " seeds"]
    limit_loss: Float[np.ndarray, "seeds choices"]
    best_local: Float[np.ndarray, " seeds"]
    plane: Float[np.ndarray, "ps selectable 2"]
    plane_support: Float[np.ndarray, "ps selectable tokens"]
    plane_local: Float[np.ndarray, "ps selectable"]
    plane_attention: Float[np.ndarray, "ps selectable records tokens"]
    steps: Float[np.ndarray, " records"]

    def of(self, p: float) -> int:
        """Return the place of an exponent.

        Args:
            p: One of the exponents.

        Returns:
            Its index.
        """
        return self.settings.ps.index(p)

    def others(self) -> np.ndarray:
        """Return which choices are not the best one, ``(seeds, choices)``."""
        return np.arange(self.local.shape[2]) != self.best[:, None]

    def measurements(self) -> dict[str, Measurement]:
        """Return duality, feasibility and the fate of choices, by claim id."""
        settings, local = self.settings, self.local > 0
        seeds, others = len(local), self.others()
        other_local = np.array([own[:, which].mean() for own, which in zip(self.local, others, strict=True)])
        several = (local & others[:, None]).any(axis=(1, 2))
        left = self.kept[:, -1][~local].sum() / max(1, (~local).sum())
        changes = (local != local[:, :1]).any(axis=(1, 2))
        expected = np.array([theory.share_of_choices(n, settings.pair_dimension) for n in settings.pairs])
        attended = self.plane_attention[:, CONTESTED, -1, CONTESTED]
        best = np.minimum(
            self.best_local, [own[:, int(b)].mean() for own, b in zip(self.local, self.best, strict=True)]
        )
        found = {
            "MD-SVM-feasible": {
                "share_feasible": self.feasible[:, 0].mean(),
                "share_beyond": self.feasible[:, 1].mean(),
            },
            "MD-opt-local": {"share_locally_optimal": best.mean(), "share_of_other_choices": np.median(other_local)},
            "MD-local-many": {"share_of_problems": several.mean()},
            "MD-local-norm": {"share_of_problems": changes.mean()},
            "MD-local-left": {"share_kept": left, "runs": (~local).sum()},
            "MD-capacity": {"largest_difference": np.abs(self.pair_share.mean(axis=0) - expected).max()},
            "MD-local-plane": {
                "attention_p1_5": attended[self.of(KEPT_BELOW)],
                "attention_p3": attended[self.of(LEFT_ABOVE)],
            },
        }
        summed = {
            claim: Measurement(
                {name: float(value) for name, value in values.items()},
                n_seeds=1 if claim == "MD-local-plane" else seeds,
            )
            for claim, values in found.items()
        }
        return summed | {
            "MD-SVM-dual": extremes_over_seeds(max_relative_duality_gap=self.duality_gap),
            "MD-SVM-single": extremes_over_seeds(max_error=self.single_error),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> TokenSelection:
    """Solve attention SVMs for many choices of tokens, and train from their solutions.

    Args:
        settings: Sizes and exponents.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (parts done, parts in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available, or tokens that should be selected cannot be.
    """
    clock, where = Clock(), runtime.device(device)
    arrays: dict[str, np.ndarray] = {}
    parts = (_duality, _counts, _every_choice, _plane)
    for number, part in enumerate(parts, 1):
        with runtime.threads(1):
            arrays |= part(settings, where)
        if progress:
            progress(number, len(parts))
    return TokenSelection(settings=settings, provenance=clock.provenance(where), **arrays)


def _duality(settings: Settings, device: torch.device) -> dict[str, np.ndarray]:
    """Certificates recomputed from the objectives, for the best tokens of full-size problems."""
    one = draw_problems(
        settings.seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension
    )
    rows = attention_constraints(one.tokens, one.queries, one.best_tokens)
    chosen = np.arange(settings.n_tokens) == one.best_tokens[..., None]
    gaps, errors, local = [], [], []
    for p in settings.ps:
        found = attention_svm(one.tokens, one.queries, one.best_tokens, p)
        multipliers = found.multipliers[~chosen].reshape(len(rows), -1)
        dual, weights = theory.dual_objective(rows, multipliers, p)
        primal = mirror.entrywise_norm(found.weight, p) ** 2 / 2
        apart = mirror.entrywise_norm(found.weight - weights.reshape(found.weight.shape), p) / found.norm
        # The matrix is known to about the root of the gap only; it counts as squared.
        gaps.append(np.maximum(np.abs(primal - dual) / primal, apart**2))
        local.append(locally_optimal(one.token_scores, one.best_tokens, found.support))
        pair = Problems(one.tokens[:, :1, :2], one.queries[:, :1], one.labels[:, :1], one.decoder)
        alone = attention_svm(pair.tokens, pair.queries, np.zeros((len(rows), 1), dtype=int), p).weight
        constraint = attention_constraints(pair.tokens, pair.queries, np.zeros((len(rows), 1), dtype=int))
        closed = mirror.single_constraint(constraint.reshape(alone.shape), p)
        errors.append(mirror.entrywise_norm(alone - closed, p) / mirror.entrywise_norm(closed, p))
    return {
        "duality_gap": np.stack(gaps, axis=1),
        "single_error": np.stack(errors, axis=1),
        "best_local": np.mean(local, axis=0),
    }


def _counts(settings: Settings, device: torch.device) -> dict[str, np.ndarray]:
    """Share of random choices that some matrix makes."""
    sizes = list(settings.crowded)
    sizes += [(n, 2, settings.pair_dimension) for n in settings.pairs]
    shares = np.array([[_share(settings, seed, size) for size in sizes] for seed in settings.seeds])
    return {"feasible": shares[:, :2], "pair_share": shares[:, 2:]}


def _share(settings: Settings, seed: int, size: tuple[int, int, int]) -> float:
    one = draw_problems([seed], n_samples=size[0], n_tokens=size[1], dimension=size[2]).repeated(settings.choices)
    selected = stream(seed, "choices", *size).integers(size[1], size=(settings.choices, size[0]))
    return float(selectable(one.tokens, one.queries, selected).mean())


def _every_choice(settings: Settings, device: torch.device) -> dict[str, np.ndarray]:
    """All choices of small problems: margin, local optimality, and whether training keeps them."""
    samples, tokens, dimension = settings.small
    one = draw_problems(settings.seeds, n_samples=samples, n_tokens=tokens, dimension=dimension)
    choices = np.array(list(product(range(tokens), repeat=samples)))
    shape = (len(settings.tried), len(settings.seeds), len(choices))
    problems = joined([one.repeated(len(choices))] * len(settings.tried))
    selected = np.tile(choices, (len(settings.tried) * len(settings.seeds), 1))
    ps = np.repeat(settings.tried, len(settings.seeds) * len(choices))
    found = attention_svm(problems.tokens, problems.queries, selected, ps)
    kept = []
    for norm in settings.relative_norms:
        (last,) = _trained(settings, problems, ps, norm * found.weight, device, (settings.steps,))
        kept.append((theory.attention(last, problems).argmax(-1) == selected).all(-1))
    local = locally_optimal(problems.token_scores, selected, found.support)
    by_choice = {"margin": 1 / found.norm, "local": local.astype(float)}
    scores = np.take_along_axis(one.token_scores[:, None], choices[None, :, :, None], axis=-1)[..., 0]
    return {name: np.moveaxis(a.reshape(shape), 0, 1) for name, a in by_choice.items()} | {
        "kept": np.moveaxis(np.reshape(kept, (-1, *shape)), 2, 0).astype(float),
        "best": (choices == one.best_tokens[:, None]).all(-1).argmax(-1).astype(float),
        "limit_loss": theory.LOSSES["logistic"].value(scores).mean(-1),
    }


def _plane(settings: Settings, device: torch.device) -> dict[str, np.ndarray]:
    """The six tokens in the plane: every token that can be selected, by exponent."""
    shape = (len(settings.ps), INSIDE)
    problems = plane_tokens().repeated(shape[0] * shape[1])
    selected = np.tile(np.arange(INSIDE), shape[0])[:, None]
    ps = np.repeat(settings.ps, INSIDE)
    found = attention_svm(problems.tokens, problems.queries, selected, ps)
    steps = tuple(sorted({0, *np.geomspace(1, settings.plane_steps, 25).astype(int).tolist()}))
    path = _trained(settings, problems, ps, settings.relative_norms[-1] * found.weight, device, steps)
    attended = np.stack([theory.attention(weights, problems)[:, 0] for weights in path], axis=1)
    return {
        "plane": found.weight[:, :, 0].reshape(*shape, 2),
        "plane_support": found.support[:, 0].reshape(*shape, -1).astype(float),
        "plane_local": locally_optimal(problems.token_scores, selected, found.support).reshape(shape).astype(float),
        "plane_attention": attended.reshape(*shape, *attended.shape[1:]),
        "steps": np.array(steps, dtype=float),
    }


def _trained(
    settings: Settings, problems: Problems, ps: np.ndarray, start: np.ndarray, device: torch.device, at: tuple[int, ...]
) -> np.ndarray:
    """Matrices along scale-free mirror descent."""
    history = descend(
        problems,
        ps,
        steps=at[-1],
        step_size=settings.step_size,
        normalized=True,
        start=start,
        record_at=at,
        device=device,
    )
    return np.asarray(history.records["key_query"])
