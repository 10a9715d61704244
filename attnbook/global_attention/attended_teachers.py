r"""Data of equation (5): labels made by a self-attention network.

====================  =================  ======================================
paper                 name here          shape
====================  =================  ======================================
$p$, $t$              ``n_tokens``, ...  tokens of a sample, entries of a token
$x_i$                 ``inputs``         ``(samples, n_tokens, dimension)``
$w^Q$, $w^K$, $w^V$   merged, ``value``  see :class:`AttendedTeacher`
$w^{(1)}$, $w^{(2)}$  ``hidden``, ...    first and second layer
====================  =================  ======================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = ["AttendedTeacher", "draw_attended_teacher"]

# Samples from which the mean and the variance of the labels are estimated.
N_SCALE = 20_000


@dataclass(frozen=True)
class AttendedTeacher:
    r"""The function $w^{(2)\top}\phi(\langle w^{(1)},\mathrm{vec}(w^Vx\,a^{self}(x))\rangle)$ with mean 0, variance 1.

    Attributes:
        key_query: $w^{Q\top}w^K/\sqrt{d_q}$, all that the attention weights depend on, ``(dimension, dimension)``.
        value: $w^V$, ``(n_value, dimension)``.
        hidden: First layer, ``(width, n_tokens * n_value)``.
        decoder: Second layer, ``(width,)``.
        offset: Subtracted from the label.
    """

    key_query: Float[np.ndarray, "dimension dimension"]
    value: Float[np.ndarray, "n_value dimension"]
    hidden: Float[np.ndarray, "width attended"]
    decoder: Float[np.ndarray, " width"]
    offset: float = 0.0

    def __call__(self, inputs: Float[np.ndarray, "samples tokens dimension"]) -> Float[np.ndarray, " samples"]:
        """Return the labels of these samples."""
        scores = inputs @ self.key_query @ inputs.swapaxes(1, 2)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (powers / powers.sum(-1, keepdims=True)) @ (inputs @ self.value.T)
        hidden = np.maximum(attended.reshape(len(inputs), -1) @ self.hidden.T, 0.0)
        return hidden @ self.decoder - self.offset


def draw_attended_teacher(
    n_tokens: int, dimension: int, *, n_query: int, n_value: int, width: int, rng: np.random.Generator
) -> AttendedTeacher:
    """Draw a teacher whose attention weights are far from uniform.

    Queries, keys and values have standard normal entries, the layers variance one over the fan-in; the paper leaves
    the teacher of Theorem 2 open. For normal inputs the scores have a standard deviation of about ``dimension``.

    Args:
        n_tokens: Tokens $p$ of a sample, at least 1.
        dimension: Entries $t$ of a token.
        n_query: Entries $d_q$ of a query.
        n_value: Entries $d_v$ of a value.
        width: Hidden units.
        rng: Source of randomness.

    Returns:
        The teacher.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> teacher = draw_attended_teacher(3, 2, n_query=2, n_value=2, width=4, rng=np.random.default_rng(0))
        >>> teacher(np.zeros((1, 3, 2))).shape
        (1,)
    """
    sizes = {"n_tokens": n_tokens, "dimension": dimension, "n_query": n_query, "n_value": n_value, "width": width}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    query, key = rng.standard_normal((2, n_query, dimension))
    value = rng.standard_normal((n_value, dimension))
    hidden = rng.standard_normal((width, n_tokens * n_value)) / np.sqrt(n_tokens * n_value)
    decoder = rng.standard_normal(width) / np.sqrt(width)
    raw = AttendedTeacher(query.T @ key / np.sqrt(n_query), value, hidden, decoder)
    labels = raw(rng.standard_normal((N_SCALE, n_tokens, dimension)))
    return AttendedTeacher(raw.key_query, value, hidden, decoder / labels.std(), float(labels.mean() / labels.std()))
