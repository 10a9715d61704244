"""Who races to the attention margin: sizes, rules, step sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from attnbook.core.ensemble import log_spaced
from attnbook.core.resuming import check_seeds
from attnbook.multi_head.data import Mixture

__all__ = ["Runner", "Settings"]


class Runner(NamedTuple):
    """One way to train one network.

    Attributes:
        rule: ``plain`` gradient descent on the logistic loss, or ``normalised`` by the loss.
        n_heads: Number of heads.
        step_size: The constant step size.
        from_zero: Whether it starts at zero; else after the first phase, with balanced signs.
    """

    rule: Literal["plain", "normalised"]
    n_heads: int
    step_size: float
    from_zero: bool


@dataclass(frozen=True)
class Settings:
    r"""Sizes and runners; all are this book's, the paper asks the question only.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        first_phase_samples: Samples of the first phase.
        heads: The smaller number of heads, and the larger.
        plain_step_size: Step size of plain gradient descent: the best for one head among those tried.
        normalised_step_size: Step size of normalised gradient descent; not tuned.
        steps: Number of steps, the same for all.
        tried_plain: Step sizes that are tried for plain gradient descent, increasing.
        tried_normalised: The same for normalised gradient descent.
        tried_steps: Number of steps of these trials.
        early_step: A step to look at besides the logarithmically spaced ones.
        records: How many of these there are, about.
        seeds: Seeds of patterns and samples.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 10
    dimension: int = 8
    n_patterns: int = 4
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.1
    noise: float = 0.125
    free_noise: float = 0.3
    n_samples: int = 20
    first_phase_samples: int = 1000
    heads: tuple[int, int] = (1, 16)
    plain_step_size: float = 10.0
    normalised_step_size: float = 0.05
    steps: int = 4000
    tried_plain: tuple[float, ...] = (1.0, 10.0, 30.0, 100.0, 300.0)
    tried_normalised: tuple[float, ...] = (0.05, 0.2, 0.8)
    tried_steps: int = 4000
    early_step: int = 1000
    records: int = 48
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.heads) != 2 or not 1 <= self.heads[0] < self.heads[1]:
            raise ValueError(f"heads: expected two increasing numbers of at least 1, got {self.heads}")
        for name in ("tried_plain", "tried_normalised"):
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] <= 0:
                raise ValueError(f"{name}: expected increasing positive numbers, got {sizes}")
        for name in ("plain_step_size", "normalised_step_size", "tried_steps", "n_samples", "first_phase_samples"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if not 1 <= self.early_step <= self.steps:
            raise ValueError(f"early_step: expected a step between 1 and {self.steps}, got {self.early_step}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=7, first_phase_samples=50, steps=50, tried_steps=5, early_step=20, records=5, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples in more dimensions, and more steps."""
        return cls(dimension=50, n_patterns=20, n_samples=50, steps=20_000, tried_steps=20_000, seeds=tuple(range(10)))

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        return Mixture(
            self.n_tokens,
            self.dimension,
            self.n_patterns,
            self.pattern_norm,
            self.relevant_fraction,
            self.noise,
            self.noise,
            self.free_noise,
        )

    @property
    def runners(self) -> tuple[Runner, ...]:
        """Who races, in the order of the arrays of a result, first those that start at zero."""
        few, many = self.heads
        plain = [Runner("plain", n_heads, self.plain_step_size, True) for n_heads in self.heads]
        step_size = self.normalised_step_size
        return (*plain, Runner("normalised", few, step_size, True), Runner("normalised", many, step_size, False))

    @property
    def tried(self) -> tuple[Runner, ...]:
        """Who tries other step sizes, all from zero, in the order of the array of a result."""
        plain = [Runner("plain", n_heads, size, True) for size in self.tried_plain for n_heads in self.heads]
        others = [Runner("normalised", n_heads, size, True) for size in self.tried_normalised for n_heads in self.heads]
        return (*plain, *others)

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps to record at; without step 0, where a network from zero has no margin per norm."""
        return log_spaced(self.steps, self.records, also=(self.early_step,))[1:]
