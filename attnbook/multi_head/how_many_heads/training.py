"""Networks of equal heads on the tokenised mixture: their data, training, and what is looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import History, Parameters, log_spaced
from attnbook.core.experiment import Experiment
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.multi_head import head_groups, layer, measures, starts
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples
from attnbook.multi_head.objectives import logistic

Start = Literal["zero", "first phase"]
FIRST = 8  # steps with a look at the loss after each: a step size far too large shows there
FINISHED = 1e-18  # training loss at which no step changes a parameter any more, not even with the largest step size


class Case(NamedTuple):
    """One network of every seed."""

    n_heads: float
    step_size: float
    exponent: float = 0.5  # c: heads are summed with H^-c


class Drawn(NamedTuple):
    """Samples of some seeds, one member each."""

    tokens: Tensor  # (members, samples, tokens, dimension)
    labels: Tensor  # (members, samples)
    relevant: Tensor  # (members, samples, tokens): which tokens carry the label


class Data(NamedTuple):
    """All samples of some seeds; the patterns of a seed are the same in all of them."""

    train: Drawn
    first_phase: Drawn
    test: Drawn


@dataclass(frozen=True, kw_only=True)
class OnMixture(Experiment):
    """Base of the experiments on the mixture: one token in ten carries the label, and noise is as long as patterns."""

    n_tokens: int = 10  # tokens T of a sample
    dimension: int = 20  # of a token
    n_patterns: int = 4  # patterns M that say nothing
    pattern_norm: float = 1.0  # norm S of every pattern
    relevant_fraction: float = 0.1  # share zeta of tokens that carry the label
    noise: float = 0.3  # bound on the noise along patterns
    free_noise: float = 1.0  # norm of the noise orthogonal to all patterns
    n_samples: int = 40  # training samples
    n_first_phase: int = 400  # further samples, for the first phase
    n_test: int = 1000  # test samples

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_samples", "n_first_phase", "n_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        _ = self.mixture

    @property
    def mixture(self) -> Mixture:
        """The data model; refuses sizes that do not fit."""
        sizes = self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def draw(self, seeds: Sequence[int], device: torch.device) -> Data:
        """Draw the samples of some seeds, in float64."""
        sizes = {"samples": self.n_samples, "first phase": self.n_first_phase, "test": self.n_test}
        return Data(*(self._draw(seeds, purpose, size, device) for purpose, size in sizes.items()))

    def _draw(self, seeds: Sequence[int], purpose: str, size: int, device: torch.device) -> Drawn:
        found = []
        for seed in seeds:
            patterns = draw_patterns(self.mixture, rng=stream(seed, "patterns"))
            found.append(draw_samples(self.mixture, patterns, size, rng=stream(seed, purpose)))
        fields = (np.stack([getattr(one, name) for one in found]) for name in Drawn._fields)
        return Drawn(*(torch.as_tensor(array, device=double(device)) for array in fields))


def double(device: torch.device) -> torch.device:
    """Return where to compute in float64: the CPU in place of mps, which has none."""
    return torch.device("cpu") if device.type == "mps" else device


def start_of(start: Start, data: Data, n_heads: float) -> tuple[Parameters, Tensor]:
    """Return where all seeds start and how many heads each group has.

    One group from zero; after the first phase two, as many plus as minus heads, and a single head is a plus head.
    """
    tokens, labels, _ = data.first_phase
    zero = start == "zero"
    counts = tokens.new_tensor([n_heads] if zero else starts.even_sign_counts(n_heads)).repeat(len(tokens), 1)
    if zero:
        return starts.zero(len(tokens), *tokens.shape[2:], device=tokens.device), counts
    return starts.first_phase(tokens, labels), counts


def descend(
    data: Data, start: Start, case: Case, steps: int, record: Callable[[Parameters], dict[str, Tensor]],
    record_at: Sequence[int], progress: Progress | None,
) -> History:  # fmt: skip
    """Train one network of every seed, until a recorded training loss is zero up to rounding."""
    parameters, counts = start_of(start, data, case.n_heads)
    return head_groups.gradient_descent(
        parameters,
        data.train.tokens,
        logistic(data.train.labels),
        counts=counts,
        step_size=case.step_size,
        steps=steps,
        record=record,
        record_at=record_at,
        stop=(lambda records: records["loss"] <= FINISHED) if start == "zero" else None,
        exponent=case.exponent,
        progress=progress,
    )


def trained(
    data: Data, start: Start, case: Case, steps: int, progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """Train one network of every seed and return what training left behind."""
    counts, objective = start_of(start, data, case.n_heads)[1], logistic(data.train.labels)

    def outputs(now: Parameters, tokens: Tensor) -> Tensor:
        return layer.outputs(now, tokens, counts=counts, exponent=case.exponent)

    def loss(now: Parameters) -> dict[str, Tensor]:
        return {"loss": objective(outputs(now, data.train.tokens))[0]}

    looks = sorted({*range(min(FIRST, steps) + 1), *log_spaced(steps, 12)})
    history = descend(data, start, case, steps, loss, looks, progress)
    last, few = history.parameters, slice(data.train.tokens.shape[1])
    mass = measures.relevant_mass(last, data.test.tokens[:, few], data.test.relevant[:, few])
    found = {
        "train_loss": loss(last)["loss"],
        "test_error": measures.error_rate(outputs(last, data.test.tokens), data.test.labels),
        "mass": (mass * counts).sum(1) / counts.sum(1),  # attention on relevant tokens, the mean over all heads
    }
    arrays = {name: tensor.cpu().numpy() for name, tensor in found.items()}
    return arrays | {"highest_loss": history.records["loss"].max(0)}


def train_all(
    data: Data, start: Start, cases: Sequence[Case], steps: int, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train the networks of all cases, one case at a time; arrays ``(cases, seeds)``."""
    found = []
    for number, case in enumerate(cases):
        found.append(trained(data, start, case, steps, share(progress, number, len(cases))))
    return {name: np.array([one[name] for one in found]) for name in found[0]}
