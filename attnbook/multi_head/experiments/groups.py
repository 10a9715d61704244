"""Groups of equal heads on the tokenised mixture, for stacks of seeds, numbers of heads and step sizes.

What the experiments on the number of heads share: their data, and training with records of loss, error and attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import History, Parameters
from attnbook.core.resuming import check_seeds, share
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, measures, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.samples import Drawn
from attnbook.multi_head.objectives import logistic

__all__ = [
    "Cell",
    "Data",
    "MixtureSettings",
    "Start",
    "draw_data",
    "start_of",
    "statistics",
    "train",
    "train_cells",
    "train_loss",
]

Start = Literal["zero", "first_phase"]

# Groups trained as one program: their attention maps of the training samples then stay in the cache.
GROUPS_AT_ONCE = 24


@dataclass(frozen=True)
class MixtureSettings:
    r"""Data of the experiments on the number of heads; they are this book's own.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share $\zeta$ of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        n_first_phase: Further samples for the first phase.
        n_test: Test samples.
        seeds: Seeds of patterns and samples.
        chunk: Seeds of which a finished part is kept.
    """

    n_tokens: int = 10
    dimension: int = 20
    n_patterns: int = 4
    pattern_norm: float = 1.0
    relevant_fraction: float = 0.1
    noise: float = 0.3
    free_noise: float = 1.0
    n_samples: int = 40
    n_first_phase: int = 400
    n_test: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_first_phase", "n_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

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


class Cell(NamedTuple):
    """One network of every seed.

    Attributes:
        n_heads: Number of heads.
        step_size: Step size of gradient descent.
    """

    n_heads: float
    step_size: float


class Data(NamedTuple):
    """Samples of some members.

    Attributes:
        train: Those to train on.
        first_phase: Those for the first phase.
        test: Those to test on.
    """

    train: Drawn
    first_phase: Drawn
    test: Drawn

    def repeated(self, times: int) -> Data:
        """Return the same samples for several networks of each seed, seeds in the inner order."""
        return Data(*(Drawn(*(t.repeat(times, *[1] * (t.ndim - 1)) for t in drawn)) for drawn in self))


def draw_data(settings: MixtureSettings, seeds: Sequence[int], *, device: torch.device) -> Data:
    """Draw the samples of some seeds.

    Args:
        settings: Sizes.
        seeds: Seeds, one member each.
        device: Where they are wanted.

    Returns:
        The samples.
    """
    sizes = {
        "samples": settings.n_samples,
        "first phase": settings.n_first_phase,
        "test": settings.n_test,
    }
    drawn = (samples.draw(settings.mixture, n, seeds, purpose=p, device=device) for p, n in sizes.items())
    return Data(*drawn)


def start_of(start: Start, data: Data, n_heads: Sequence[float]) -> tuple[Parameters, Tensor]:
    """Return where training starts and how many heads each group has.

    Args:
        start: ``zero``, one group; or ``first_phase``, two groups with as many plus as minus heads (a single head is a
            plus head).
        data: Samples of each member.
        n_heads: Heads of each member.

    Returns:
        The parameters, and the counts ``(members, groups)``.
    """
    tokens, labels, _ = data.first_phase
    if start == "zero":
        parameters = starts.zero(len(tokens), *tokens.shape[2:], device=tokens.device)
        return parameters, tokens.new_tensor(n_heads)[:, None]
    counts = np.stack([starts.even_sign_counts(h) for h in n_heads])
    return starts.first_phase(tokens, labels), torch.as_tensor(counts, dtype=tokens.dtype, device=tokens.device)


def statistics(parameters: Parameters, data: Data, counts: Tensor, exponent: float = 0.5) -> dict[str, Tensor]:
    """Return what is recorded of every member: losses, test error, and attention mass of each group on test samples.

    Args:
        parameters: Groups of heads.
        data: Samples of each member.
        counts: Heads of each group.
        exponent: The exponent of the scaling.

    Returns:
        ``train_loss``, ``test_loss``, ``test_error`` ``(members,)`` and ``mass`` ``(members, groups)``; the latter on
        as many test samples as there are training samples.
    """
    found = []
    for member in range(len(counts)):  # one at a time: test samples are many, and the cache is small
        one = slice(member, member + 1)
        own = {name: tensor[one] for name, tensor in parameters.items()}
        out = [
            layer.outputs(own, drawn.tokens[one], counts=counts[one], exponent=exponent)
            for drawn in (data.train, data.test)
        ]
        labels = (data.train.labels[one], data.test.labels[one])
        few = slice(data.train.tokens.shape[1])
        found.append(
            {
                "train_loss": logistic(labels[0])(out[0])[0],
                "test_loss": logistic(labels[1])(out[1])[0],
                "test_error": measures.error_rate(out[1], labels[1]),
                "mass": measures.relevant_mass(own, data.test.tokens[one, few], data.test.relevant[one, few]),
            }
        )
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def train_loss(parameters: Parameters, data: Data, counts: Tensor) -> dict[str, Tensor]:
    """Return the training loss alone, as a record.

    Args:
        parameters: Groups of heads.
        data: Samples of each member.
        counts: Heads of each group.

    Returns:
        ``train_loss`` ``(members,)``.
    """
    out = layer.outputs(parameters, data.train.tokens, counts=counts)
    return {"train_loss": logistic(data.train.labels)(out)[0]}


def train(
    data: Data,
    cells: Sequence[Cell],
    start: Start,
    *,
    steps: int,
    record_at: Sequence[int],
    exponent: float = 0.5,
    progress: Progress | None = None,
) -> History:
    """Train one network for every cell and seed.

    Args:
        data: Samples of the seeds.
        cells: Networks of each seed; those of equal step size side by side are faster.
        start: Where they start.
        steps: Number of steps.
        record_at: Steps to record at.
        exponent: The exponent of the scaling.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records of :func:`statistics`; members are cells, and for each cell the seeds.
    """
    seeds = len(data.train.tokens)
    all_data = data.repeated(len(cells))
    parameters, counts = start_of(start, all_data, [cell.n_heads for cell in cells for _ in range(seeds)])
    return head_groups.gradient_descent(
        parameters,
        all_data.train.tokens,
        logistic(all_data.train.labels),
        counts=counts,
        step_size=[cell.step_size for cell in cells for _ in range(seeds)],
        steps=steps,
        record=lambda p: statistics(p, all_data, counts, exponent),
        record_at=record_at,
        exponent=exponent,
        progress=progress,
    )


def train_cells(
    data: Data,
    cells: Sequence[Cell],
    start: Start,
    *,
    steps: int,
    record_at: Sequence[int],
    exponent: float = 0.5,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Train as :func:`train` does, a few cells at a time.

    Args:
        data: Samples of the seeds.
        cells: Networks of each seed.
        start: Where they start.
        steps: Number of steps.
        record_at: Steps to record at.
        exponent: The exponent of the scaling.
        progress: Told (steps done, steps in all).

    Returns:
        The records, each ``(seeds, cells, records)``; ``mass`` with a last axis over groups.
    """
    seeds, n_groups = len(data.train.tokens), 1 if start == "zero" else 2
    size = len(cells) if data.train.tokens.is_cuda else max(1, GROUPS_AT_ONCE // (seeds * n_groups))
    batches = [cells[i : i + size] for i in range(0, len(cells), size)]
    found = []
    for number, batch in enumerate(batches):
        inner = share(progress, number, len(batches))
        history = train(data, batch, start, steps=steps, record_at=record_at, exponent=exponent, progress=inner)
        found.append(history.records)
    joined = {name: np.concatenate([records[name] for records in found], axis=1) for name in found[0]}
    return {name: _by_seed(array, len(cells), seeds) for name, array in joined.items()}


def _by_seed(array: np.ndarray, cells: int, seeds: int) -> np.ndarray:
    """Reorder ``(records, cells * seeds, ...)`` to ``(seeds, cells, records, ...)``."""
    shaped = array.reshape(len(array), cells, seeds, *array.shape[2:])
    return np.ascontiguousarray(np.moveaxis(shaped, 0, 2).swapaxes(0, 1))
