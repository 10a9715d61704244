"""What the experiments of the chapter measure in one cell of the mixture; and the pictures of the slider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from attnbook.core import runtime
from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention
from attnbook.multi_head.on_mixture import MixtureCells
from attnbook.multi_head.tangent_kernel import tangent_features


@dataclass(frozen=True, kw_only=True)
class SeedBySeed(MixtureCells):
    """Base of the experiments on drawn samples: one seed after another, and in each of them cell after cell."""

    budget_seconds = 10

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Return the arrays of all seeds, on one thread of the CPU: matrices are small."""
        with runtime.threads(1):
            return self.grid(("seed",), self.one_seed, also={"seed": seeds}, progress=progress)

    def one_seed(self, seed: int) -> Arrays:
        """Return the arrays of one seed."""
        raise NotImplementedError


def draw(mixture: Mixture, seed: int, n: int, *purpose: Any, corners: bool = False) -> tuple[Patterns, Samples]:
    """Return the patterns of a seed and samples for one purpose."""
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    return patterns, draw_samples(mixture, patterns, n, rng=stream(seed, *purpose), corners=corners)


def unit_oracle(patterns: Patterns, mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return decoder and key-query matrix of the oracle, each of norm one."""
    u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    return u / np.linalg.norm(u), w / np.linalg.norm(w)


def linearised_margins(
    mixture: Mixture, seed: int, n_samples: int, steps: Sequence[float], residual: float = 0.0
) -> tuple[np.ndarray, float]:
    r"""Return smallest margins of $\tilde\theta_\star$ for each first step, and with uniform attention."""
    (patterns, drawn), d = draw(mixture, seed, n_samples, "order"), mixture.dimension
    direction = np.concatenate([part.ravel() for part in unit_oracle(patterns, mixture)])
    off = stream(seed, "residual").standard_normal(d)
    row = mixture.relevant_fraction / 4 * oracle.value_direction(patterns) + residual * off / np.linalg.norm(off)
    decoders = torch.from_numpy(np.outer(steps, row))[:, None, None].expand(-1, 1, mixture.n_tokens, -1)
    parameters = {"decoder": decoders, "key_query": decoders.new_zeros((len(steps), 1, d, d))}
    features = tangent_features(parameters, torch.from_numpy(drawn.tokens).expand(len(steps), -1, -1, -1)).numpy()
    values = mixture.n_tokens * d  # the first entries are those of the decoder
    uniform = drawn.labels * (features[0, :, :values] @ direction[:values])
    return (drawn.labels * (features @ direction)).min(axis=1), uniform.min()


class AttentionMap(NamedTuple):
    """One picture of the slider."""

    weights: np.ndarray  # how much each query (row) attends to each token, the relevant ones first
    n_relevant: int  # how many these are
    leak: float  # largest attention of a query on irrelevant tokens
    margin: float  # of the value direction on the sample, over the attention margin


def attention_map(share: float, *, hard: bool) -> AttentionMap:
    r"""Return where a sample with label 1 looks at a share of $\Gamma_{0.1}$, with drawn noise or the worst."""
    mixture = Mixture(10, 7, 4, 1.0, 0.2, 0.125, 0.125)
    patterns, drawn = draw(mixture, 0, 50, "map")
    chosen = against_attention(mixture, patterns) if hard else drawn
    first = int((chosen.labels > 0).argmax())
    tokens = chosen.tokens[first][np.argsort(~chosen.relevant[first], kind="stable")]
    u, w = unit_oracle(patterns, mixture)
    logits = share * oracle.stated_scale(mixture, 0.1) * tokens @ w @ tokens.T
    weights = torch.from_numpy(logits).softmax(1).numpy()
    leak, margin = weights[:, mixture.n_relevant :].sum(1).max(), (u * (weights @ tokens)).sum()
    return AttentionMap(weights, mixture.n_relevant, leak, margin / oracle.attention_margin(mixture))
