r"""The two networks of Table 2 at full size, trained without computing on padding.

Both read a review as $P$ positions of word vectors, zero after its last word, and are followed by the same two layers:

==================  =================================================================================
network             input of the first layer at position $z$
==================  =================================================================================
``baseline``        the word vector $x_z$
``self_attention``  $o_z = w^VXa^{(z)}$ of equations (4) and (5)
==================  =================================================================================

The first layer is ReLU with ``width`` units and a matrix of its own at every position, the second one logit; only
these two have biases. The loss is the cross-entropy of the label. Gradients are in closed form; tests hold them
against autograd on the padded network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention import position_layer
from attnbook.global_attention.batches import check_sizes, rows_of
from attnbook.global_attention.padding_free_attention import (
    WayBack,
    attend_with_gradient,
    attention_weights,
    merge_key_query,
)
from attnbook.global_attention.reviews import EncodedReviews

__all__ = ["Network", "ReviewNetwork", "Shape", "groups_of_similar_length", "initial_weights", "uniform"]

Network: TypeAlias = Literal["baseline", "self_attention"]

# Reviews are attended to in groups of similar length: the shortest has at least this share of the longest's words, or
# this many words less, ...
SIMILAR, NEAR = 0.85, 32
# ... and at most this many attention weights at a time.
MOST_WEIGHTS = 4_000_000


@dataclass(frozen=True)
class Shape:
    """Sizes of a network for reviews.

    Attributes:
        n_positions: Positions after padding; 2142 in Table 2.
        dimension: Entries of a word vector; 100 in Table 2. Queries, keys and values have as many.
        width: Hidden units; 256 in Table 2.
    """

    n_positions: int
    dimension: int
    width: int

    def __post_init__(self) -> None:
        check_sizes(self, "n_positions", "dimension", "width")


class ReviewNetwork:
    """One network of Table 2 with its gradients.

    Attributes:
        network: Which of the two.
        shape: Its sizes.
        parameters: Name to tensor, as an optimiser moves them; their ``.grad`` is set by :meth:`step`.
    """

    def __init__(
        self, network: Network, shape: Shape, vectors: Float[Tensor, "vocabulary dimension"], *, seed: int
    ) -> None:
        """Draw initial weights, uniform in one over the root of the fan-in as in torch's linear layers.

        Args:
            network: Which of the two.
            shape: Its sizes.
            vectors: Word vectors, row 0 zero; device and type of the computation are theirs.
            seed: Seed of the initial weights; both networks of a seed have the same first and second layer.

        Raises:
            ValueError: If the network is unknown, or the vectors have another dimension or no row of zeros.
        """
        if network not in get_args(Network):
            raise ValueError(f"network: expected one of {', '.join(get_args(Network))}, got {network!r}")
        if vectors.shape[1] != shape.dimension or vectors[0].any():
            raise ValueError(f"vectors: expected {shape.dimension} entries and a row 0 of zeros, got {vectors.shape}")
        self.network, self.shape, self.vectors = network, shape, vectors
        self.parameters, self.parameters["first"] = initial_weights(shape, seed, vectors)
        if network == "baseline":
            for name in ("query", "key", "value"):
                del self.parameters[name]

    def groups(self, step_size: float) -> list[dict[str, Any]]:
        """Return the parameters with their step size."""
        return [{"params": list(self.parameters.values()), "lr": step_size}]

    @torch.no_grad()
    def step(self, reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]) -> float:
        """Set the gradient of the mean loss over some reviews, and return that loss."""
        p = self.parameters
        chosen = reviews.longest_first(chosen)
        lengths = reviews.lengths[chosen]
        deviations, common, backward = self._inputs(reviews, chosen)
        total = p["first"].sum(0)
        hidden = self._hidden(deviations, lengths, common, total)
        labels = to_tensor(reviews.labels[chosen], device=self.vectors.device, dtype=self.vectors.dtype)
        logits = hidden @ p["decoder"] + p["decoder_bias"]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        at_logits = (logits.sigmoid() - labels) / len(chosen)
        at_hidden = torch.outer(at_logits, p["decoder"]) * hidden.sign()
        p["decoder"].grad, p["decoder_bias"].grad = hidden.mT @ at_logits, at_logits.sum()
        p["bias"].grad = at_hidden.sum(0)
        position_layer.set_gradient(p["first"], deviations, lengths, common, at_hidden)
        if backward:
            backward(position_layer.input_gradient(p["first"], lengths, at_hidden), at_hidden @ total.mT)
        return float(loss)

    @torch.no_grad()
    def logits(
        self, reviews: EncodedReviews, *, batch_size: int = 64, only_padding: bool = False
    ) -> Float[np.ndarray, " reviews"]:
        r"""Return the logit of each review, positive for praise.

        Args:
            reviews: The reviews, of at most ``n_positions`` words.
            batch_size: Reviews computed together.
            only_padding: Leave out how the words differ from padding: what is left is the pooled path $S^\top c$.

        Returns:
            The logits.
        """
        total, p = self.parameters["first"].sum(0), self.parameters
        found = np.empty(len(reviews))
        for chosen in np.array_split(reviews.longest_first(np.arange(len(reviews))), -(-len(reviews) // batch_size)):
            deviations, common, _ = self._inputs(reviews, chosen)
            if only_padding:
                deviations = deviations[:, :0]
            lengths = np.minimum(reviews.lengths[chosen], deviations.shape[1])
            hidden = self._hidden(deviations, lengths, common, total)
            found[chosen] = (hidden @ p["decoder"] + p["decoder_bias"]).double().cpu().numpy()
        return found

    def key_query(self) -> Float[Tensor, "dimension dimension"]:
        """Return the matrix of the attention scores."""
        return merge_key_query(self.parameters["query"], self.parameters["key"])

    def tokens(self, reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]) -> Float[Tensor, "reviews words t"]:
        """Return the word vectors of some reviews, zero after the last word."""
        return rows_of(self.vectors, torch.as_tensor(reviews.padded(chosen), device=self.vectors.device))

    def mass_on_words(self, reviews: EncodedReviews) -> float:
        """Return the mean over words, then over reviews, of the attention that does not fall on padding."""
        words = (self.tokens(reviews, np.array([review])) for review in range(len(reviews)))
        weights = (attention_weights(tokens, self.key_query(), self.shape.n_positions) for tokens in words)
        return float(np.mean([float(each.sum(-1).mean()) for each in weights]))

    def _hidden(self, deviations: Tensor, lengths: np.ndarray, common: Tensor, total: Tensor) -> Tensor:
        words = position_layer.apply(self.parameters["first"], deviations, lengths)
        return (words + common @ total + self.parameters["bias"]).relu_()

    def _inputs(
        self, reviews: EncodedReviews, chosen: np.ndarray
    ) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], None] | None]:
        """Inputs minus those of padding, the inputs of padding, and what sets the gradients of attention."""
        if self.network == "baseline":
            tokens = self.tokens(reviews, chosen)
            return tokens, tokens.new_zeros(len(chosen), tokens.shape[2]), None
        key_query, value, lengths = self.key_query(), self.parameters["value"], reviews.lengths[chosen]
        deviations = self.vectors.new_zeros(len(chosen), int(lengths.max(initial=1)), len(value))
        common = self.vectors.new_empty(len(chosen), len(value))
        groups: list[tuple[slice, Tensor, WayBack]] = []
        for part in groups_of_similar_length(lengths):
            tokens = self.tokens(reviews, chosen[part])
            words, padding, backward = attend_with_gradient(tokens, key_query, value, self.shape.n_positions)
            mask = np.arange(tokens.shape[1]) < lengths[part][:, None]
            inside = to_tensor(mask, device=tokens.device, dtype=tokens.dtype).unsqueeze(-1)
            deviations[part, : tokens.shape[1]] = (words - padding.unsqueeze(1)) * inside
            common[part] = padding
            groups.append((part, inside, backward))

        def set_gradients(at_deviations: Tensor, at_common: Tensor) -> None:
            of_scores, of_value = torch.zeros_like(key_query), torch.zeros_like(value)
            for part, inside, backward in groups:
                at_words = at_deviations[part, : inside.shape[1]] * inside
                scores, values = backward(at_words, at_common[part] - at_words.sum(1))
                of_scores += scores
                of_value += values
            p, scale = self.parameters, len(self.parameters["query"]) ** -0.5
            p["query"].grad, p["key"].grad = p["key"] @ of_scores.mT * scale, p["query"] @ of_scores * scale
            p["value"].grad = of_value

        return deviations, common, set_gradients


def initial_weights(
    shape: Shape, seed: int, like: Tensor
) -> tuple[dict[str, Tensor], Float[Tensor, "positions value width"]]:
    """Draw the small parameters of a network, by name, and its first layer; device and type are those of ``like``."""
    t, width, fan_in = shape.dimension, shape.width, shape.n_positions * shape.dimension
    sizes = {"query": (t, t), "key": (t, t), "value": (t, t)}
    small = {name: uniform(stream(seed, name), size, t, like) for name, size in sizes.items()}
    small["bias"] = uniform(stream(seed, "bias"), (width,), fan_in, like)
    small["decoder"] = uniform(stream(seed, "decoder"), (width,), width, like)
    small["decoder_bias"] = uniform(stream(seed, "decoder bias"), (), width, like)
    weights = like.new_empty(shape.n_positions, t, width)
    for first in range(0, shape.n_positions, position_layer.CHUNK):
        part = weights[first : first + position_layer.CHUNK]
        part.copy_(uniform(stream(seed, "first layer", first), tuple(part.shape), fan_in, like))
    return small, weights


def uniform(rng: np.random.Generator, size: tuple[int, ...], fan_in: int, like: Tensor) -> Tensor:
    """Draw weights between plus and minus ``fan_in ** -0.5``, on the device and in the type of ``like``."""
    bound = fan_in**-0.5
    return to_tensor(rng.uniform(-bound, bound, size), device=like.device, dtype=like.dtype)


def groups_of_similar_length(lengths: Int[np.ndarray, " reviews"]) -> Iterator[slice]:
    """Cut reviews, the longest first, into groups that need little padding and not too much memory.

    Args:
        lengths: Words of each review, falling.

    Yields:
        The reviews of a group.

    Example:
        >>> [(part.start, part.stop) for part in groups_of_similar_length(np.array([500, 450, 90, 70]))]
        [(0, 2), (2, 4)]
    """
    first = 0
    while first < len(lengths):
        longest = max(int(lengths[first]), 1)
        most = max(1, MOST_WEIGHTS // longest**2)
        similar = int(np.searchsorted(-lengths, -min(SIMILAR * longest, longest - NEAR), side="right"))
        last = max(first + 1, min(similar, first + most))
        yield slice(first, last)
        first = last
