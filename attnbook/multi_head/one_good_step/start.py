r"""Margins of the paper's target after the first phase, as sums of a decoder part and an attention part.

The start is $m$, the row of every decoder per unit of its random sign; $m=\frac\zeta4u_\star$ is its signal alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import oracle, starts
from attnbook.multi_head.data import Drawn, Mixture, draw, draw_patterns
from attnbook.multi_head.tangent_kernel import largest_margins, tangent_features


class Truth(NamedTuple):
    """The signal and the target of some seeds, one member each."""

    signal: Tensor  # u_star = mu_+ - mu_-, (members, dimension)
    decoder: Tensor  # of the target, norm one, (members, tokens, dimension)
    key_query: Tensor  # of the target, norm one, (members, dimension, dimension)

    def parts(self, batch: Drawn) -> tuple[Tensor, Tensor]:
        r"""Return the decoder part of the margins, and the vectors whose product with $m$ is the attention part."""
        pull = starts.key_query_pull(batch.tokens, batch.labels, self.key_query)
        return starts.decoder_part(batch.tokens, batch.labels, self.decoder), pull

    def margins(self, batch: Drawn, m: Tensor) -> Tensor:
        """Return the margin of every sample at one direction of each member."""
        decoder, pull = self.parts(batch)
        return decoder + torch.einsum("bnd,bd->bn", pull, m)


def truth(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> Truth:
    """Return signal and target of some seeds."""
    rows = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
        rows.append((oracle.value_direction(patterns), u / np.linalg.norm(u), w / np.linalg.norm(w)))
    return Truth(*(to_tensor(np.stack(part), device=where, dtype=torch.float64) for part in zip(*rows, strict=True)))


def smallest_margins(
    mixture: Mixture, n_samples: int, n_best: int, seeds: Sequence[int], where: torch.device
) -> dict[str, np.ndarray]:
    """Measure smallest margins at zero and at the signal: of the target, and of the best one for some samples."""
    true, batch = truth(mixture, seeds, where), draw(mixture, n_samples, seeds, device=where)
    m, few = mixture.relevant_fraction / 4 * true.signal, Drawn(*(part[:, :n_best] for part in batch))
    margins = {name: true.margins(batch, at).amin(1) for name, at in {"zero_margin": 0 * m, "margin": m}.items()}
    best = {"best_zero": best_margin(few, 0 * m), "best": best_margin(few, m)}
    return {name: value.cpu().numpy() for name, value in margins.items()} | best


def quiet(mixture: Mixture) -> Mixture:
    """Return the mixture without noise along patterns."""
    return replace(mixture, label_noise=0.0, other_noise=0.0)


def best_margin(batch: Drawn, m: Tensor) -> np.ndarray:
    r"""Return the largest margin of any target of norm $\sqrt2$ at one head with rows $m$; NaN where none is."""
    rows = m[:, None, None].expand(-1, 1, batch.tokens.shape[2], -1)
    key_query = m.new_zeros((len(m), 1, m.shape[1], m.shape[1]))
    features = tangent_features({"decoder": rows, "key_query": key_query}, batch.tokens)
    found = largest_margins((features @ features.mT).cpu().numpy(), batch.labels.cpu().numpy())
    return np.where(found > 0, 2**0.5 * found, np.nan)
