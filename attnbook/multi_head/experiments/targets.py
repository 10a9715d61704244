"""Patterns of stacks of members, and targets of the start's margin: the oracle with blocks of norm one, the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, Patterns, draw_patterns

__all__ = ["best_margin", "label_direction", "oracle_target", "patterns_of"]


def patterns_of(
    mixture: Mixture, seeds: Sequence[int], *, device: torch.device | None = None
) -> tuple[Float[Tensor, "members 2 dimension"], Float[Tensor, "members patterns dimension"]]:
    r"""Return the patterns $\mu_\pm$ and $\nu_\ell$ of some seeds.

    Args:
        mixture: Sizes and noise.
        seeds: Seeds, one member each; the patterns are those of :func:`~attnbook.multi_head.experiments.samples.draw`.
        device: Where they are wanted; default CPU.

    Returns:
        The label patterns and the others.
    """
    found = _draw(mixture, seeds)
    return _stack([p.label for p in found], device), _stack([p.other for p in found], device)


def label_direction(
    mixture: Mixture, seeds: Sequence[int], *, device: torch.device | None = None
) -> Float[Tensor, "members dimension"]:
    r"""Return $u_\star=\mu_+-\mu_-$ of some seeds.

    Args:
        mixture: Sizes and noise.
        seeds: Seeds, one member each.
        device: Where it is wanted; default CPU.

    Returns:
        One direction for each seed.
    """
    return _stack([oracle.value_direction(patterns) for patterns in _draw(mixture, seeds)], device)


def oracle_target(
    mixture: Mixture, seeds: Sequence[int], *, device: torch.device | None = None
) -> tuple[Float[Tensor, "members tokens dimension"], Float[Tensor, "members dimension dimension"]]:
    r"""Return $\bar U_\star=U_\star/\|U_\star\|$ and $\bar W_\star=W_\star/\|W_\star\|$ of some seeds.

    Args:
        mixture: Sizes and noise.
        seeds: Seeds, one member each.
        device: Where they are wanted; default CPU.

    Returns:
        Decoder and key-query matrix of one head.
    """
    found = _draw(mixture, seeds)
    decoders = [oracle.decoder(patterns, mixture.n_tokens) for patterns in found]
    key_queries = [oracle.key_query(patterns) for patterns in found]
    return _stack([u / np.linalg.norm(u) for u in decoders], device), _stack(
        [w / np.linalg.norm(w) for w in key_queries], device
    )


def best_margin(
    features: Float[Tensor, "members samples entries"], labels: Float[Tensor, "members samples"]
) -> Float[np.ndarray, " members"]:
    r"""Return the largest margin of any target of norm $\sqrt2$ in the tangent kernel.

    Args:
        features: Gradients of the outputs, see :func:`~attnbook.multi_head.tangent_kernel.tangent_features`.
        labels: 1 or -1.

    Returns:
        One margin for each member; NaN where none is positive.
    """
    found = []
    for gram, own in zip((features @ features.mT).cpu().numpy(), labels.cpu().numpy(), strict=True):
        try:
            found.append(2**0.5 * kernel_margin(gram, own).margin)
        except NotSeparableError:
            found.append(np.nan)
    return np.array(found)


def _draw(mixture: Mixture, seeds: Sequence[int]) -> list[Patterns]:
    return [draw_patterns(mixture, rng=stream(seed, "patterns")) for seed in seeds]


def _stack(arrays: Sequence[np.ndarray], device: torch.device | None) -> Tensor:
    return to_tensor(np.stack(arrays), device=device or torch.device("cpu"), dtype=torch.float64)
