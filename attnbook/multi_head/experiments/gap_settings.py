"""Sizes of the experiment on the gap between test and training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from attnbook.core.resuming import check_seeds
from attnbook.multi_head.data import Mixture

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment; the paper's own are not in the text available to us.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        heads: Number of heads, half of them with each sign.
        first_samples: Samples $n_1$ of the first phase; they are not counted in $n$.
        step_size: Step size of gradient descent; not tuned.
        sizes: Numbers of training samples $n$, each twice the one before.
        steps: The fixed number of steps, at least the largest $n$.
        test_samples: Samples that the test loss is measured on.
        seeds: Seeds of patterns, samples and coin tosses.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 10
    dimension: int = 20
    n_patterns: int = 4
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.2
    noise: float = 0.3
    free_noise: float = 1.0
    heads: int = 4
    first_samples: int = 400
    step_size: float = 0.5
    sizes: tuple[int, ...] = (10, 20, 40, 80, 160)
    steps: int = 200
    test_samples: int = 2000
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 2

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or self.sizes[0] < 2 or self.sizes != self._doubled():
            raise ValueError(f"sizes: expected at least two numbers from 2 on, each twice the last, got {self.sizes}")
        if self.steps < self.sizes[-1]:
            raise ValueError(f"steps: expected at least the largest size, {self.sizes[-1]}, got {self.steps}")
        if self.heads < 2 or self.heads % 2:
            raise ValueError(f"heads: expected an even number of at least 2, got {self.heads}")
        for name in ("first_samples", "test_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.step_size > 0:
            raise ValueError(f"step_size: expected a positive number, got {self.step_size}")
        if len(self.seeds) < 2:
            raise ValueError(f"seeds: a mean gap with its error needs at least two, got {self.seeds}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    def _doubled(self) -> tuple[int, ...]:
        return tuple(self.sizes[0] * 2**power for power in range(len(self.sizes)))

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(sizes=(5, 10), steps=12, test_samples=200, seeds=(0, 1), dimension=7, n_tokens=5)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return larger tokens, more samples and more seeds; the paper's own sizes are not known."""
        return cls(
            dimension=50,
            sizes=(10, 20, 40, 80, 160, 320, 640, 1280),
            steps=1280,
            test_samples=5000,
            seeds=tuple(range(50)),
            chunk=5,
        )

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
