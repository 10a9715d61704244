"""What the experiments of the chapter share: cells of the mixture, draws, slopes, arrays of all seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.rng import stream
from attnbook.multi_head import layer, oracle
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention
from attnbook.multi_head.measures import leak_and_margin


def noisy(mixture: Mixture, noise_share: float) -> Mixture:
    r"""Return the mixture with $Z_\mu=Z_\nu$ at a share of $S^2$."""
    noise = noise_share * mixture.pattern_norm**2
    return replace(mixture, label_noise=noise, other_noise=noise)


def slope(values: xr.DataArray, along: str = "norm") -> xr.DataArray:
    """Return the slope against one dimension, on log axes."""
    logs = values.assign_coords({along: np.log(values[along])})
    return xr.DataArray(np.log(logs)).polyfit(along, 1).polyfit_coefficients.sel(degree=1, drop=True)


def patterns_of(mixture: Mixture, seed: int) -> Patterns:
    """Return the patterns of a seed."""
    return draw_patterns(mixture, rng=stream(seed, "patterns"))


def draw(mixture: Mixture, seed: int, n: int, *purpose: Any, corners: bool = False) -> tuple[Patterns, Samples]:
    """Return the patterns of a seed and samples for one purpose."""
    patterns = patterns_of(mixture, seed)
    return patterns, draw_samples(mixture, patterns, n, rng=stream(seed, *purpose), corners=corners)


def unit_oracle(patterns: Patterns, mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return decoder and key-query matrix of the oracle, each of norm one."""
    u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    return u / np.linalg.norm(u), w / np.linalg.norm(w)


def check_increasing(experiment: Experiment, *names: str) -> None:
    """Refuse settings that are empty or do not increase."""
    for name in names:
        values = getattr(experiment, name)
        if not values or list(values) != sorted(set(values)):
            raise ValueError(f"{name}: expected increasing numbers, got {values}")


def stacked(axis: str, rows: Sequence[Arrays]) -> Arrays:
    """Return arrays of the same names and shapes along a new first dimension."""
    return {name: ((axis, *axes), np.stack([row[name][1] for row in rows])) for name, (axes, _) in rows[0].items()}


def each(seeds: tuple[int, ...], one: Callable[[int], Arrays]) -> Arrays:
    """Return the arrays of all seeds, on one thread of the CPU: matrices are small."""
    with runtime.threads(1):
        return stacked("seed", [one(seed) for seed in seeds])


class AttentionMap(NamedTuple):
    """One picture of the slider."""

    weights: np.ndarray  # how much each query (row) attends to each token, the relevant ones first
    n_relevant: int  # how many these are
    leak: float  # largest attention of a query on irrelevant tokens
    margin: float  # of the value direction on the sample, over the attention margin


def attention_map(share: float, *, hard: bool) -> AttentionMap:
    r"""Return where a sample with label 1 looks at a share of $\Gamma_{0.1}$, with drawn noise or the worst."""
    mixture = noisy(Mixture(10, 7, 4, relevant_fraction=0.2), 0.125)
    patterns, drawn = draw(mixture, 0, 50, "map")
    chosen = against_attention(mixture, patterns) if hard else drawn
    first = int((chosen.labels > 0).argmax())
    order = np.argsort(~chosen.relevant[first], kind="stable")
    tokens, relevant = (part[[first]][:, order] for part in (chosen.tokens, chosen.relevant))
    sample = Samples(tokens, np.ones(1), relevant)
    u, w = unit_oracle(patterns, mixture)
    w = share * oracle.stated_scale(mixture, 0.1) * w
    parameters = {"decoder": torch.from_numpy(u)[None, None], "key_query": torch.from_numpy(w)[None, None]}
    weights = layer.attention_weights(parameters, torch.from_numpy(sample.tokens)[None])[0, 0, 0].numpy()
    leak, margin = leak_and_margin(sample, u, w)
    return AttentionMap(weights, mixture.n_relevant, leak, margin / oracle.attention_margin(mixture))
