"""Sizes of the experiment on stability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from attnbook.core.resuming import check_seeds
from attnbook.multi_head.data import Mixture

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; the paper has none on stability in the text available to us.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        heads: Numbers of heads, a small and a huge one; half of them with each sign.
        first_samples: Samples $n_1$ of the first phase; they are not counted in $n$.
        step_size: Step size of gradient descent; not tuned.
        steps: Number of steps $K$.
        sizes: Numbers of training samples $n$, increasing.
        inside_step_size: Step size of the run inside the recursion's hypotheses, at most $1/\beta_2$ there.
        inside_steps: Steps of that run.
        inside_size: Training samples of that run.
        test_samples: Samples that the test loss of the full networks is measured on.
        reduced_test_samples: The first of them, for the reduced networks.
        seeds: Seeds of patterns and samples.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 5
    dimension: int = 10
    n_patterns: int = 4
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.2
    noise: float = 0.3
    free_noise: float = 1.0
    heads: tuple[int, int] = (4, 100_000_000)
    first_samples: int = 400
    step_size: float = 0.5
    steps: int = 60
    sizes: tuple[int, ...] = (10, 20, 40, 80)
    inside_step_size: float = 0.1
    inside_steps: int = 300
    inside_size: int = 10
    test_samples: int = 2000
    reduced_test_samples: int = 500
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 2:
            raise ValueError(f"sizes: expected at least two increasing numbers of at least 2, got {self.sizes}")
        if len(self.heads) != 2 or not 2 <= self.heads[0] < self.heads[1] or any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected two increasing even numbers, got {self.heads}")
        for name in ("first_samples", "steps", "inside_steps", "test_samples", "reduced_test_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("step_size", "inside_step_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if self.inside_size < 2:
            raise ValueError(f"inside_size: leaving one out needs at least 2, got {self.inside_size}")
        if len(self.seeds) < 2:
            raise ValueError(f"seeds: a mean gap needs at least two, got {self.seeds}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(
            sizes=(5, 10),
            steps=10,
            inside_steps=10,
            inside_size=5,
            test_samples=50,
            reduced_test_samples=20,
            seeds=(0, 1),
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples and seeds; the paper's own sizes are not known."""
        return cls(sizes=(10, 20, 40, 80, 160, 320), seeds=tuple(range(20)))

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
