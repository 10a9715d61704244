r"""A search for the noise, within its bounds, that lowers the margin at the start most.

The margin at $m=\frac\zeta4u_\star$ depends on a sample through its label, the patterns of its tokens and the noise
along patterns. The search starts from random samples with noise at its bounds, follows the sign of the gradient and
stays within the bounds. What it finds is a margin that some allowed sample has, so the worst one is no larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.multi_head import starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.targets import label_direction, oracle_target, patterns_of

__all__ = ["smallest_margin"]

N_SAMPLES = 40
STEPS = 40


def smallest_margin(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> Float[np.ndarray, " seeds"]:
    r"""Search for the smallest margin of the target at $m=\frac\zeta4u_\star$ that the bounds on the noise allow.

    Args:
        mixture: Sizes and noise; noise orthogonal to all patterns changes no margin and is left out.
        seeds: Seeds of the samples from which the search starts, one member each.
        where: Where to compute.

    Returns:
        The smallest margin found from each seed's samples.
    """
    quiet = replace(mixture, label_noise=0.0, other_noise=0.0, free_noise=0.0, dimension=mixture.n_patterns + 2)
    clean = samples.draw(quiet, N_SAMPLES, seeds, device=where)
    patterns = torch.cat(patterns_of(quiet, seeds, device=where), dim=1) / mixture.pattern_norm**2
    of_label, of_other = mixture.label_noise, mixture.other_noise / mixture.n_patterns
    bounds = clean.tokens.new_tensor([of_label] * 2 + [of_other] * mixture.n_patterns)
    bounds = bounds * ~clean.relevant.unsqueeze(3)
    decoder, key_query = oracle_target(quiet, seeds, device=where)
    m = mixture.relevant_fraction / 4 * label_direction(quiet, seeds, device=where)

    def margins(noise: Tensor) -> Tensor:
        tokens = clean.tokens + torch.einsum("bntp,bpd->bntd", noise, patterns)
        pull = starts.key_query_pull(tokens, clean.labels, key_query)
        zero = starts.decoder_part(tokens, clean.labels, decoder)
        return zero + torch.einsum("bnd,bd->bn", pull, m)

    signs = [stream(seed, "worst noise").choice([1.0, -1.0], bounds.shape[1:]) for seed in seeds]
    noise = bounds * bounds.new_tensor(np.stack(signs))
    smallest = margins(noise).amin(1)
    for step in range(STEPS):
        slope = torch.func.grad(lambda at: margins(at).sum())(noise)
        noise = (noise - 2 * (1 - step / STEPS) * bounds * slope.sign()).clamp(-bounds, bounds)
        smallest = torch.minimum(smallest, margins(noise).amin(1))
    return np.asarray(smallest.cpu())
