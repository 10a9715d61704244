r"""Eq. (7) without noise, where it is exact, compared with gradients of whole networks under both readings.

*Signs*: $U_h=\alpha_h\frac\zeta4\mathbb 1u_\star^\top$ with $\alpha_h=\pm1$. *Uniform*: $\alpha$ uniform on $[-1,1]$
and $\frac\zeta2$ in the place of $\frac\zeta4$, in expectation over $\alpha$.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.experiments.targets import label_direction, oracle_target
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = ["MIXTURES", "errors"]

MIXTURES = (
    Mixture(10, 6, 4, pattern_norm=2.0, relevant_fraction=0.4),
    Mixture(10, 12, 4, pattern_norm=1.0, relevant_fraction=0.1),
    Mixture(7, 11, 3, pattern_norm=1.5, relevant_fraction=3 / 7),
    Mixture(5, 13, 2, pattern_norm=3.0, relevant_fraction=1.0),
)
"""Sizes at which the formula is compared; in the last one every token carries the label."""

N_SAMPLES = 20
N_HEADS = 5
NODES = 4


def errors(seeds: Sequence[int], where: torch.device) -> dict[str, Float[np.ndarray, "seeds sizes"]]:
    """Compare eq. (7) and the softmax Jacobian at zero with automatic or closed-form gradients.

    Args:
        seeds: Seeds of patterns, samples and signs, one member each.
        where: Where to compute.

    Returns:
        ``noise_free_error`` and ``uniform_error``, the largest relative errors over samples at each of
        :data:`MIXTURES`, and ``jacobian_error``, of the form with the factor $1/T$ and the one without.
    """
    by_sizes = [_errors_at(mixture, seeds, where) for mixture in MIXTURES]
    found = {name: np.stack([one[name] for one in by_sizes], axis=1) for name in by_sizes[0]}
    return {**found, "jacobian_error": np.tile(_jacobian_errors(MIXTURES[0].n_tokens), (len(seeds), 1))}


def _errors_at(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> dict[str, np.ndarray]:
    batch = samples.draw(mixture, N_SAMPLES, seeds, device=where)
    row = mixture.relevant_fraction * label_direction(mixture, seeds, device=where)
    stated = oracle.first_phase_margin(mixture)
    signs = stream(seeds[0], "noise-free signs").choice([1.0, -1.0], N_HEADS)
    of_signs = _margins(mixture, seeds, batch, row / 4, signs)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # On each half of [-1, 1] the margin is linear in alpha, so this average is the expectation.
    uniform = torch.zeros_like(of_signs)
    for half in (-0.5, 0.5):
        for node, weight in zip(half + nodes / 2, weights / 4, strict=True):
            uniform += weight * _margins(mixture, seeds, batch, row / 2, np.array([node]))
    relative = {"noise_free_error": of_signs, "uniform_error": uniform}
    return {name: (part / stated - 1).abs().amax(1).cpu().numpy() for name, part in relative.items()}


def _margins(mixture: Mixture, seeds: Sequence[int], batch: samples.Drawn, row: Tensor, alpha: np.ndarray) -> Tensor:
    r"""Return $y_i\langle\nabla\tilde\Phi(X_i),\tilde\theta_\star\rangle$ of a whole network."""
    n_heads, where = len(alpha), row.device
    coefficients = torch.tensor(alpha, dtype=torch.float64, device=where)[None, :, None, None]
    rows = row[:, None, None].expand(-1, n_heads, mixture.n_tokens, -1)
    nothing = row.new_zeros((len(row), n_heads, mixture.dimension, mixture.dimension))
    features = tangent_features({"decoder": coefficients * rows, "key_query": nothing}, batch.tokens)
    decoder, key_query = oracle_target(mixture, seeds, device=where)
    heads = [torch.cat([decoder.flatten(1), float(np.sign(a)) * key_query.flatten(1)], dim=1) for a in alpha]
    target = torch.cat(heads, dim=1) / n_heads**0.5
    return batch.labels * torch.einsum("bnf,bf->bn", features, target)


def _jacobian_errors(n_tokens: int) -> tuple[float, float]:
    """Relative errors of the softmax Jacobian at zero, with and without one over the number of tokens."""
    zero = torch.zeros(n_tokens, dtype=torch.float64)
    true = torch.func.jacrev(lambda v: v.softmax(0))(zero)
    printed = torch.eye(n_tokens, dtype=torch.float64) - 1 / n_tokens
    scale = true.norm()
    return float((printed / n_tokens - true).norm() / scale), float((printed - true).norm() / scale)
