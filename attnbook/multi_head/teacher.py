r"""A planted teacher: labels that one attention head with random weights gives to normal tokens."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import to_tensor
from attnbook.multi_head import network

__all__ = ["draw_labelled", "draw_teacher"]


def draw_teacher(
    n_tokens: int, dimension: int, *, rng: np.random.Generator
) -> dict[str, Float[np.ndarray, "1 rows dimension"]]:
    """Draw one head with standard normal entries.

    Args:
        n_tokens: Tokens of a sample, at least 1.
        dimension: Dimension of a token, at least 1.
        rng: Source of randomness.

    Returns:
        ``decoder (1, tokens, dimension)`` and ``key_query (1, dimension, dimension)``.

    Raises:
        ValueError: If a size is not positive.
    """
    return network.draw_parameters(1, n_tokens, dimension, scale=1.0, rng=rng)


def draw_labelled(
    teacher: dict[str, Float[np.ndarray, "1 rows dimension"]], n_samples: int, *, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "samples tokens dimension"], Float[np.ndarray, " samples"]]:
    """Draw samples with standard normal tokens, labelled by the sign of the teacher's output.

    Args:
        teacher: One head.
        n_samples: How many, at least 1.
        rng: Source of randomness.

    Returns:
        Tokens, and labels 1 or -1.

    Raises:
        ValueError: If ``n_samples`` is not positive.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> tokens, labels = draw_labelled(draw_teacher(3, 2, rng=rng), 4, rng=rng)
        >>> tokens.shape, labels.shape
        ((4, 3, 2), (4,))
    """
    if n_samples < 1:
        raise ValueError(f"n_samples: expected at least 1, got {n_samples}")
    tokens = rng.standard_normal((n_samples, *teacher["decoder"].shape[1:]))
    stacked = {name: to_tensor(array[None], dtype=torch.float64) for name, array in teacher.items()}
    outputs = network.predict(stacked, to_tensor(tokens[None], dtype=torch.float64))[0].numpy()
    return tokens, np.where(outputs >= 0, 1.0, -1.0)
