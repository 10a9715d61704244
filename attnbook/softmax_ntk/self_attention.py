r"""One self-attention layer, its gradient in closed form, and its values by least squares.

The layer of the paper's Appendix H is $\mathrm{softmax}(XQK^\top X^\top)\,XV$, where the softmax is taken of each row.
Queries and keys enter through their product only:

===================  ==================  ==========================================
paper                name here           shape
===================  ==================  ==========================================
$X$                  ``tokens``          ``(length, dimension)`` for each sequence
$QK^\top$            ``key_query``       ``(dimension, dimension)``
$V$                  ``value``           ``(dimension, outputs)``
===================  ==================  ==========================================

Tensors have a leading *member* axis: layers of equal sizes are computed together, each on its own sequences; outputs,
contexts and labels have one row per token, all sequences below each other. To train layers alternately, the values
solved for before each step of the key-query matrix::

    gradient = autograd(lambda now, _: layer_loss(now["key_query"], None, tokens, labels))
    train(gradient, {"key_query": start}, optimizer=Adam(0.05), steps=200, record=...)
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.two_layer import check_finite, check_shape

__all__ = [
    "attention_weights",
    "contexts",
    "draw_layer",
    "draw_planted",
    "layer_loss",
    "outputs",
    "row_jacobian",
    "solve_values",
]

KeyQuery: TypeAlias = Float[Tensor, "members dimension dimension"]
Tokens: TypeAlias = Float[Tensor, "members sequences length dimension"]

# Directions in which the Gram matrix of the contexts is smaller than this part of its largest eigenvalue are left at 0.
CUTOFF = 1e-12


def draw_layer(
    dimension: int, n_outputs: int, *, rng: np.random.Generator, sharpness: float = 1.0
) -> tuple[Float[np.ndarray, "dimension dimension"], Float[np.ndarray, "dimension outputs"]]:
    r"""Return random weights of a layer, $QK^\top$ and $V$.

    Args:
        dimension: Entries of a token.
        n_outputs: Outputs of a token.
        rng: Source of randomness.
        sharpness: Standard deviation of the logits of different standard normal tokens, at least 0, where attention
            is uniform; entries of $QK^\top$ have this over the dimension. Default 1.

    Returns:
        Key-query matrix and values; entries of $V$ have standard deviation $1/\sqrt{\mathrm{dimension}}$.

    Raises:
        ValueError: If a size is not positive or the sharpness is negative or not finite.

    Example:
        >>> [weights.shape for weights in draw_layer(5, 3, rng=np.random.default_rng(0))]
        [(5, 5), (5, 3)]
    """
    check_positive(dimension=dimension, n_outputs=n_outputs)
    if not 0 <= sharpness < np.inf:
        raise ValueError(f"sharpness: expected a finite number of at least 0, got {sharpness}")
    key_query = sharpness / dimension * rng.standard_normal((dimension, dimension))
    return key_query, rng.standard_normal((dimension, n_outputs)) / np.sqrt(dimension)


def draw_planted(
    seed: int, shape: tuple[int, int, int], n_outputs: int, *, mean_norm: float = 0.0, sharpness: float = 2.0
) -> dict[str, np.ndarray]:
    """Return standard normal sequences, a random layer that labels them, and where a student of it may start.

    Args:
        seed: Of all streams.
        shape: Sequences, tokens of each, entries of a token.
        n_outputs: Outputs of a token.
        mean_norm: Norm of a mean that all tokens share; default 0.
        sharpness: Standard deviation of the teacher's logits; default 2.

    Returns:
        ``tokens``, the teacher's ``key_query`` and ``value``, the student's ``start`` of nearly uniform attention, and
        ``signs``, random values of the size of the teacher's.

    Raises:
        ValueError: As :func:`draw_layer`.

    Example:
        >>> draw_planted(0, (16, 8, 5), 3)["tokens"].shape
        (16, 8, 5)
    """
    dimension = shape[2]
    (key_query, value), (start, signs) = (
        draw_layer(dimension, n_outputs, rng=stream(seed, name, dimension), sharpness=logits)
        for name, logits in (("teacher", sharpness), ("student", 0.1))
    )
    mean = stream(seed, "mean", dimension).standard_normal(dimension)
    tokens = stream(seed, "sequences", *shape).standard_normal(shape) + mean_norm * mean / np.linalg.norm(mean)
    signs = np.sign(signs) / dimension**0.5
    return {"tokens": tokens, "key_query": key_query, "value": value, "start": start, "signs": signs}


def attention_weights(key_query: KeyQuery, tokens: Tokens) -> Float[Tensor, "members sequences length length"]:
    r"""Return $\mathrm{softmax}(XQK^\top X^\top)$ of each sequence: row $i$ says what token $i$ looks at.

    Args:
        key_query: One matrix for each layer, ``(members, dimension, dimension)``.
        tokens: The sequences of each layer, ``(members, sequences, length, dimension)``.

    Returns:
        Numbers between 0 and 1; each row adds up to 1.

    Raises:
        ValueError: If the shapes do not fit or a token is not finite.

    Example:
        >>> attention_weights(torch.zeros(1, 3, 3), torch.ones(1, 2, 4, 3))[0, 0, 0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    members, dimension, _ = key_query.shape
    check_shape("tokens", tokens, (members, *tokens.shape[1:3], dimension))
    check_finite("tokens", tokens)
    asked = (tokens.flatten(1, 2) @ key_query).unflatten(1, tokens.shape[1:3])
    return torch.softmax(asked @ tokens.mT, dim=3)


def contexts(
    weights: Float[Tensor, "members sequences length length"],
    tokens: Tokens,
) -> Float[Tensor, "members rows dimension"]:
    """Return what each token gathers before the values are applied: the weighted mean of the tokens of its sequence.

    Args:
        weights: What :func:`attention_weights` gave.
        tokens: The sequences of each layer, ``(members, sequences, length, dimension)``.

    Returns:
        One row for each token.
    """
    return (weights @ tokens).flatten(1, 2)


def outputs(
    key_query: KeyQuery,
    value: Float[Tensor, "members dimension outputs"],
    tokens: Tokens,
) -> Float[Tensor, "members rows outputs"]:
    r"""Return $\mathrm{softmax}(XQK^\top X^\top)\,XV$ of each layer.

    Args:
        key_query: One matrix for each layer, ``(members, dimension, dimension)``.
        value: Its values.
        tokens: Its sequences, ``(members, sequences, length, dimension)``.

    Returns:
        One row for each token.

    Raises:
        ValueError: If the shapes do not fit or a token is not finite.
    """
    check_shape("value", value, (*key_query.shape[:2], value.shape[-1]))
    return contexts(attention_weights(key_query, tokens), tokens) @ value


def solve_values(
    rows: Float[Tensor, "members rows dimension"], labels: Float[Tensor, "members rows outputs"]
) -> Float[Tensor, "members dimension outputs"]:
    r"""Return the values that fit best, for attention weights as they are: linear least squares.

    With the contexts $C$ the loss in $V$ is $\frac12\|CV-Y\|^2$ up to a factor, solved by $V=(C^\top C)^+C^\top Y$.

    Args:
        rows: The contexts.
        labels: What the layer should say.

    Returns:
        The smallest of all best values; directions that the contexts (nearly) do not have are left at zero.

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> solve_values(torch.eye(3)[None], torch.ones(1, 3, 2))[0, 0].tolist()
        [1.0, 1.0]
    """
    check_shape("labels", labels, (*rows.shape[:2], labels.shape[-1]))
    return torch.linalg.pinv(rows.mT @ rows, rtol=CUTOFF, hermitian=True) @ (rows.mT @ labels)


def layer_loss(
    key_query: KeyQuery,
    value: Float[Tensor, "members dimension outputs"] | None,
    tokens: Tokens,
    labels: Float[Tensor, "members rows outputs"],
) -> Float[Tensor, " members"]:
    r"""Return $\frac1{2nL}\sum\|\mathrm{output}-\mathrm{label}\|^2$ of each layer over its $n$ sequences of $L$ tokens.

    Where values are solved for, the derivative is right all the same: at the best values, that through them vanishes
    (variable projection, Golub and Pereyra, 1973). So descent on this loss is alternating descent.

    Args:
        key_query: One matrix for each layer, ``(members, dimension, dimension)``.
        value: Its values; None for those that fit best (:func:`solve_values`).
        tokens: Its sequences, ``(members, sequences, length, dimension)``.
        labels: What it should say.

    Returns:
        One loss for each layer.

    Raises:
        ValueError: If the shapes do not fit or a token is not finite.

    Example:
        >>> layer_loss(torch.zeros(1, 3, 3), torch.zeros(1, 3, 2), torch.ones(1, 2, 4, 3), torch.ones(1, 8, 2)).item()
        1.0
    """
    rows = contexts(attention_weights(key_query, tokens), tokens)
    value = solve_values(rows.detach(), labels) if value is None else value
    check_shape("value", value, (*key_query.shape[:2], value.shape[-1]))
    check_shape("labels", labels, (*rows.shape[:2], value.shape[-1]))
    return (rows @ value - labels).square().sum((1, 2)) / (2 * rows.shape[1])


def row_jacobian(
    queries: Float[np.ndarray, "sequences dimension"],
    keys: Float[np.ndarray, "sequences length key_dimension"],
    values: Float[np.ndarray, "any length"],
    matrix: Float[np.ndarray, " entries"],
) -> tuple[Float[np.ndarray, " sequences"], Float[np.ndarray, "sequences entries"]]:
    r"""Return one output of each sequence, times its length, and the derivatives by the matrix that makes the neurons.

    The neurons are $w_j=Mx_j$ with the keys $x_j$, so the derivative by $M$ is $\sum_j\partial_{w_j}x_j^\top$. Where
    the keys are one-hot, the neurons are the columns of $M$: the two-layer network.

    Args:
        queries: The token of each sequence that asks.
        keys: The tokens that answer.
        values: What each of them says; one row for all sequences or one each.
        matrix: $M$, query entries by key entries, flat.

    Returns:
        Outputs and derivatives.

    Example:
        >>> row_jacobian(np.ones((1, 1)), np.array([[[1.0], [0.0]]]), np.array([[1.0, 0.0]]), np.zeros(1))[1]
        array([[0.5]])
    """
    logits = (keys @ (queries @ matrix.reshape(queries.shape[1], -1))[:, :, None])[:, :, 0]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares *= keys.shape[1] / shares.sum(1, keepdims=True)
    found = (shares * values).sum(1)
    slopes = shares * (values - found[:, None] / keys.shape[1])
    return found, (queries[:, :, None] * (slopes[:, None] @ keys)).reshape(len(queries), -1)
