r"""One self-attention layer, its gradient in closed form, and its values by least squares.

The layer of the paper's Appendix H is $\mathrm{softmax}(XQK^\top X^\top)\,XV$, where the softmax is taken of each row.
Queries and keys enter through their product only:

===================  ==================  ==========================================
paper                name here           shape
===================  ==================  ==========================================
$X$                  ``tokens``          ``(length, dimension)`` for each sequence
$QK^\top$            ``key_query``       ``(dimension, dimension)``
$V$                  ``value``           ``(dimension, outputs)``
$XV$                 (not stored)        ``(length, outputs)``
===================  ==================  ==========================================

Tensors have a leading *member* axis, as everywhere in this book: layers of equal sizes are computed together, each on
its own sequences; outputs, contexts and labels have one row per token, all sequences below each other. The loss is
$\frac1{2nL}\sum\|\mathrm{output}-\mathrm{label}\|^2$ over $n$ sequences of $L$ tokens. Shapes that do not fit raise
ValueError and are named.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Weights

__all__ = [
    "Gradients", "attention_weights", "contexts", "draw_layer", "loss_and_gradients", "outputs",
    "row_as_network", "solve_values",
]  # fmt: skip

# Directions in which the Gram matrix of the contexts is smaller than this part of its largest eigenvalue are left at 0.
CUTOFF = 1e-12


class Gradients(NamedTuple):
    """Losses of layers, and gradients with respect to both matrices.

    Attributes:
        loss: Loss of each layer.
        key_query: Gradient with respect to the key-query matrix.
        value: Gradient with respect to the values.
        at_value: The values at which they are taken: as given, or solved for.
    """

    loss: Float[Tensor, " members"]
    key_query: Float[Tensor, "members dimension dimension"]
    value: Float[Tensor, "members dimension outputs"]
    at_value: Float[Tensor, "members dimension outputs"]


def draw_layer(
    dimension: int, n_outputs: int, *, rng: np.random.Generator, sharpness: float = 1.0
) -> tuple[Float[np.ndarray, "dimension dimension"], Float[np.ndarray, "dimension outputs"]]:
    r"""Return weights of a layer, $QK^\top$ and $V$.

    Entries of $QK^\top$ have standard deviation ``sharpness`` over the dimension, so that for standard normal tokens
    the logits of different tokens have standard deviation ``sharpness``, which is at least 0 and by default 1; with 0
    attention is uniform. Entries of $V$ have $1/\sqrt{\mathrm{dimension}}$.

    Raises:
        ValueError: If a size is not positive or the sharpness is negative or not finite.

    Example:
        >>> [weights.shape for weights in draw_layer(5, 3, rng=np.random.default_rng(0))]
        [(5, 5), (5, 3)]
    """
    for name, size in {"dimension": dimension, "n_outputs": n_outputs}.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    if not 0 <= sharpness < np.inf:
        raise ValueError(f"sharpness: expected a finite number of at least 0, got {sharpness}")
    key_query = sharpness / dimension * rng.standard_normal((dimension, dimension))
    return key_query, rng.standard_normal((dimension, n_outputs)) / np.sqrt(dimension)


def attention_weights(
    key_query: Float[Tensor, "members dimension dimension"], tokens: Float[Tensor, "members sequences length dimension"]
) -> Float[Tensor, "members sequences length length"]:
    r"""Return $\mathrm{softmax}(XQK^\top X^\top)$ of each sequence: row $i$ says what token $i$ looks at.

    Raises:
        ValueError: If the shapes do not fit or a token is not finite.

    Example:
        >>> attention_weights(torch.zeros(1, 3, 3), torch.ones(1, 2, 4, 3))[0, 0, 0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    members, dimension, _ = key_query.shape
    if tokens.ndim != 4 or tokens.shape[0] != members or tokens.shape[3] != dimension:
        expected = f"({members}, any, any, {dimension})"
        raise ValueError(
            f"tokens: expected (members, sequences, length, dimension) = {expected}, got {tuple(tokens.shape)}"
        )
    if not torch.isfinite(tokens).all():
        raise ValueError("tokens: expected finite numbers, got NaN or infinity")
    asked = (tokens.flatten(1, 2) @ key_query).unflatten(1, tokens.shape[1:3])
    return torch.softmax(asked @ tokens.mT, dim=3)


def contexts(
    weights: Float[Tensor, "members sequences length length"],
    tokens: Float[Tensor, "members sequences length dimension"],
) -> Float[Tensor, "members rows dimension"]:
    """Return what each token gathers before the values are applied: the weighted mean of the tokens of its sequence."""
    return (weights @ tokens).flatten(1, 2)


def outputs(
    key_query: Float[Tensor, "members dimension dimension"],
    value: Float[Tensor, "members dimension outputs"],
    tokens: Float[Tensor, "members sequences length dimension"],
) -> Float[Tensor, "members rows outputs"]:
    r"""Return $\mathrm{softmax}(XQK^\top X^\top)\,XV$ of each layer."""
    _check_value(key_query, value)
    return contexts(attention_weights(key_query, tokens), tokens) @ value


def solve_values(
    rows: Float[Tensor, "members rows dimension"], labels: Float[Tensor, "members rows outputs"]
) -> Float[Tensor, "members dimension outputs"]:
    r"""Return the values that fit best, for attention weights as they are: linear least squares.

    With the rows of :func:`contexts` $C$ the loss in $V$ is $\frac12\|CV-Y\|^2$ up to a factor, convex, and solved by
    $V=(C^\top C)^+C^\top Y$. Directions that the contexts (nearly) do not have are left at zero: of all best
    values these are the smallest.

    Example:
        >>> solve_values(torch.eye(3)[None], torch.ones(1, 3, 2))[0, 0].tolist()
        [1.0, 1.0]
    """
    _check_labels(labels, rows)
    gram, mixed = rows.mT @ rows, rows.mT @ labels
    return torch.linalg.pinv(gram, rtol=CUTOFF, hermitian=True) @ mixed


def loss_and_gradients(
    key_query: Float[Tensor, "members dimension dimension"],
    value: Float[Tensor, "members dimension outputs"] | None,
    tokens: Float[Tensor, "members sequences length dimension"],
    labels: Float[Tensor, "members rows outputs"],
) -> Gradients:
    r"""Return the loss of each layer and both gradients, in closed form.

    With weights $S$, contexts $C=SX$ and error $E=CV-Y$, the gradient with respect to $V$ is $C^\top E$; that with
    respect to $QK^\top$ is $X^\top[S\odot(G-\mathrm{rowsum}(S\odot G))]X$ with $G=E(XV)^\top$, summed over
    sequences, both over $nL$. The subtraction is the centring of the two-layer network, one row at a time.

    Args:
        key_query: One matrix per layer.
        value: Its values; None for those that fit best (:func:`solve_values`), whose own gradient is then zero.
        tokens: Its sequences.
        labels: What it should say.
    """
    weights = attention_weights(key_query, tokens)
    rows = contexts(weights, tokens)
    _check_labels(labels, rows)
    if value is None:
        value = solve_values(rows, labels)
    _check_value(key_query, value)
    error = rows @ value - labels
    at_tokens = (error @ value.mT).unflatten(1, tokens.shape[1:3])
    back = at_tokens @ tokens.mT
    back = weights * (back - (weights * back).sum(3, keepdim=True))
    count = rows.shape[1]
    key_query_gradient = tokens.flatten(1, 2).mT @ (back @ tokens).flatten(1, 2) / count
    return Gradients(error.square().sum((1, 2)) / (2 * count), key_query_gradient, rows.mT @ error / count, value)


def row_as_network(
    tokens: Float[np.ndarray, "length dimension"],
    key_query: Float[np.ndarray, "dimension dimension"],
    value: Float[np.ndarray, "dimension outputs"],
) -> Weights:
    r"""Return the two-layer softmax network whose output at token $i$ is row $i$ of self-attention, times the length.

    It has one neuron per token of the sequence. Row $j$ of $XKQ^\top$ is the weight vector of neuron $j$, row $j$ of
    $XV$ its output weights, in the place of the signs. The network's output has a factor $m$, here the length.

    Example:
        >>> row_as_network(np.ones((4, 2)), np.eye(2), np.ones((2, 3))).signs.shape
        (3, 4)
    """
    return Weights((tokens @ key_query.T).T.copy(), (tokens @ value).T.copy())


def _check_value(key_query: Tensor, value: Tensor) -> None:
    if value.ndim != 3 or value.shape[:2] != key_query.shape[:2]:
        expected = f"({key_query.shape[0]}, {key_query.shape[1]}, any)"
        raise ValueError(f"value: expected (members, dimension, outputs) = {expected}, got {tuple(value.shape)}")


def _check_labels(labels: Tensor, rows: Tensor) -> None:
    if labels.ndim != 3 or labels.shape[:2] != rows.shape[:2]:
        expected = f"({rows.shape[0]}, {rows.shape[1]}, any)"
        raise ValueError(
            f"labels: expected (members, sequences * length, outputs) = {expected}, got {tuple(labels.shape)}"
        )
