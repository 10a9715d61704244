r"""The two networks of Table 2 at full size, trained without computing on padding, and two controls.

Both read a review as $P$ positions of word vectors, zero after its last word, and are followed by the same two layers:

==================  =================================================================================
network             input of the first layer at position $z$
==================  =================================================================================
``baseline``        the word vector $x_z$
``self_attention``  $o_z = w^VXa^{(z)}$ of equations (4) and (5)
==================  =================================================================================

The first layer is ReLU with ``width`` units and a matrix of its own at every position, the second one logit; only
these two have biases. After the last word of review $i$ all inputs are the same vector $c_i$ (the output of padding;
zero for the baseline), so with $W_z$ for the matrices, $L_i$ for the words and $P$ for the positions

$$h_i = S^\top c_i + \sum_{z\le L_i} W_z^\top(o_{iz}-c_i),\qquad S=\sum_{z\le P} W_z .$$

The loss is the cross-entropy of the label. Tests hold everything against the padded network.

The controls show what is left of self-attention when nothing can be attended to. ``uniform_attention`` freezes query
and key matrices at zero. All scores are then 0, every position has the output $o=\frac1P\sum_jw^Vx_j$, and the first
layer sees it $P$ times: $h = S^\top o + b$ with $S=\sum_zW_z$. Each $W_z$ has the same gradient $G$, so an optimiser
that acts on each entry gives all of them the same update $u(G)$, and

$$S \leftarrow S + P\,u(G).$$

**Uniform attention over padding is a bag of words whose first layer has a step size $P$ times larger**: exactly, so
that a network of 55 million weights is trained as one of 36 thousand. ``mean_pooling`` drops the rest too: the mean
of the real word vectors, an ordinary first layer, an ordinary step size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from attnbook.core.rng import stream, to_tensor
from attnbook.core.settings import check_sizes
from attnbook.global_attention.batches import rows_of
from attnbook.global_attention.padding_free_attention import attend, attention_weights, merge_key_query
from attnbook.global_attention.reviews import EncodedReviews

__all__ = [
    "Classifier", "Control", "Network", "Pooled", "PooledNetwork", "ReviewNetwork", "ReviewShape",
    "groups_of_similar_length", "initial_weights", "uniform",
]  # fmt: skip

Network: TypeAlias = Literal["baseline", "self_attention"]
Control: TypeAlias = Literal["uniform_attention", "mean_pooling"]

CHUNK = 64  # positions in one matrix product: their weights (6.5 MB at full size) stay in cache between uses
# Reviews are attended to in groups of similar length: the shortest has at least this share of the longest's words, or
# this many words less, ...
SIMILAR, NEAR = 0.85, 32
# ... and at most this many attention weights at a time.
MOST_WEIGHTS = 4_000_000


@dataclass(frozen=True)
class ReviewShape:
    """Sizes of a network for reviews."""

    n_positions: int  #: Positions after padding; 2142 in Table 2
    dimension: int  #: Entries of a word vector; 100 in Table 2. Queries, keys and values have as many.
    width: int  #: Hidden units; 256 in Table 2

    def __post_init__(self) -> None:
        check_sizes(self, "n_positions", "dimension", "width")


class Classifier:
    """What the networks of Table 2 and their controls share."""

    network: str  #: Which network it is
    parameters: dict[str, Tensor]  #: Name to tensor, as an optimiser moves them; :meth:`step` sets their ``.grad``
    factor: int = 1  #: That of the step size of the first layer

    def groups(self, step_size: float) -> list[dict[str, Any]]:
        """Return the first layer and the rest with their step sizes, as torch's optimisers take them."""
        rest = [tensor for name, tensor in self.parameters.items() if name != "first"]
        first = {"params": [self.parameters["first"]], "lr": step_size * self.factor}
        return [first, {"params": rest, "lr": step_size}]

    def answer(self, parameters: dict[str, Tensor], reviews: Any, chosen: np.ndarray) -> Float[Tensor, " reviews"]:
        """Return the logits of some reviews, differentiable in the parameters."""
        raise NotImplementedError

    def step(self, reviews: Any, chosen: Int[np.ndarray, " reviews"]) -> float:
        """Set the gradient of the mean loss over some reviews, and return that loss."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in self.parameters.items()}
        logits = self.answer(leaves, reviews, chosen)
        labels = to_tensor(reviews.labels[chosen], device=logits.device, dtype=logits.dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for tensor, gradient in zip(self.parameters.values(), gradients, strict=True):
            tensor.grad = gradient
        return float(loss.detach())


class ReviewNetwork(Classifier):
    """One network of Table 2; initial weights are uniform in one over the root of the fan-in, as in torch's layers.

    Args:
        network: Which of the two.
        shape: Its sizes.
        vectors: Word vectors, row 0 zero; device and type of the computation are theirs.
        seed: Seed of the initial weights; both networks of a seed have the same first and second layer.

    Raises:
        ValueError: If the network is unknown, or the vectors have another dimension or no row of zeros.
    """

    def __init__(
        self, network: Network, shape: ReviewShape, vectors: Float[Tensor, "vocabulary dimension"], *, seed: int
    ) -> None:
        if network not in get_args(Network):
            raise ValueError(f"network: expected one of {', '.join(get_args(Network))}, got {network!r}")
        if vectors.shape[1] != shape.dimension or vectors[0].any():
            raise ValueError(f"vectors: expected {shape.dimension} entries and a row 0 of zeros, got {vectors.shape}")
        self.network, self.shape, self.vectors = network, shape, vectors
        self.parameters, self.parameters["first"] = initial_weights(shape, seed, vectors)
        if network == "baseline":
            for name in ("query", "key", "value"):
                del self.parameters[name]

    def step(self, reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]) -> float:
        """Set the gradient of the mean loss over some reviews, and return that loss."""
        return super().step(reviews, reviews.longest_first(chosen))

    def answer(
        self, parameters: dict[str, Tensor], reviews: EncodedReviews, chosen: np.ndarray, *, only_padding: bool = False
    ) -> Float[Tensor, " reviews"]:
        """Return the logits of some reviews, the longest first; differentiable in the parameters."""
        deviations, common = self._inputs(parameters, reviews, chosen)
        if only_padding:
            deviations = deviations[:, :0]
        before = _first_layer(parameters["first"], deviations, common, reviews.lengths[chosen])
        hidden = (before + parameters["bias"]).relu()
        return hidden @ parameters["decoder"] + parameters["decoder_bias"]

    @torch.no_grad()
    def logits(
        self, reviews: EncodedReviews, *, batch_size: int = 64, only_padding: bool = False
    ) -> Float[np.ndarray, " reviews"]:
        r"""Return the logits, positive for praise; with ``only_padding`` those of the pooled path $S^\top c$ alone."""
        found = np.empty(len(reviews))
        for chosen in np.array_split(reviews.longest_first(np.arange(len(reviews))), -(-len(reviews) // batch_size)):
            logits = self.answer(self.parameters, reviews, chosen, only_padding=only_padding)
            found[chosen] = logits.double().cpu().numpy()
        return found

    def _tokens(self, reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]) -> Float[Tensor, "reviews words t"]:
        """The word vectors of some reviews, zero after the last word."""
        return rows_of(self.vectors, torch.as_tensor(reviews.padded(chosen), device=self.vectors.device))

    @torch.no_grad()
    def mass_on_words(self, reviews: EncodedReviews) -> float:
        """Return the mean over words, then over reviews, of the attention that does not fall on padding."""
        key_query = merge_key_query(self.parameters["query"], self.parameters["key"])
        words = (self._tokens(reviews, np.array([review])) for review in range(len(reviews)))
        weights = (attention_weights(tokens, key_query, self.shape.n_positions) for tokens in words)
        return float(np.mean([float(each.sum(-1).mean()) for each in weights]))

    def _inputs(
        self, parameters: dict[str, Tensor], reviews: EncodedReviews, chosen: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Inputs minus those of padding, and the inputs of padding; the longest review comes first."""
        lengths = reviews.lengths[chosen]
        longest = int(lengths.max(initial=1))
        if longest > self.shape.n_positions or (np.diff(lengths) > 0).any():
            raise ValueError(
                f"reviews: expected at most {self.shape.n_positions} words, the longest first, got {lengths}"
            )
        if self.network == "baseline":
            tokens = self._tokens(reviews, chosen)
            return tokens, tokens.new_zeros(len(chosen), tokens.shape[2])
        key_query, deviations, common = merge_key_query(parameters["query"], parameters["key"]), [], []
        for part in groups_of_similar_length(lengths):
            tokens = self._tokens(reviews, chosen[part])
            words, padding = attend(tokens, key_query, parameters["value"], self.shape.n_positions)
            mask = np.arange(tokens.shape[1]) < lengths[part][:, None]
            inside = to_tensor(mask, device=tokens.device, dtype=tokens.dtype).unsqueeze(-1)
            differing = (words - padding.unsqueeze(1)) * inside
            deviations.append(functional.pad(differing, (0, 0, 0, longest - tokens.shape[1])))
            common.append(padding)
        return torch.cat(deviations), torch.cat(common)


@dataclass(frozen=True)
class Pooled:
    """Reviews of which one vector each is left."""

    #: The sum of each review's word vectors over ``n_positions``, or their mean
    vectors: Float[np.ndarray, "reviews t"]
    labels: Float[np.ndarray, " reviews"]  #: 1 for praise, 0 for blame

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(
        cls, reviews: EncodedReviews, vectors: Float[np.ndarray, "vocabulary t"], network: Control, n_positions: int
    ) -> Pooled:
        """Return the means of the words of each review for ``mean_pooling``, else their sums over ``n_positions``."""
        scale = 1 if network == "mean_pooling" else reviews.lengths[:, None] / n_positions
        return cls(reviews.means(vectors) * scale, reviews.labels)


class PooledNetwork(Classifier):
    """A control: one vector per review, then the two layers of Table 2.

    Args:
        network: Which control.
        shape: Sizes of the network that it stands for.
        like: A tensor of the wanted device and type.
        seed: Seed of the initial weights; for uniform attention they are those of the network of Table 2.

    Raises:
        ValueError: If the control is unknown.
    """

    def __init__(self, network: Control, shape: ReviewShape, like: Tensor, *, seed: int) -> None:
        if network not in get_args(Control):
            raise ValueError(f"network: expected one of {', '.join(get_args(Control))}, got {network!r}")
        self.network = network
        t, width = shape.dimension, shape.width
        if network == "uniform_attention":
            small, weights = initial_weights(shape, seed, like)
            self.parameters = {"first": weights.sum(0), **small}
            del self.parameters["query"], self.parameters["key"]
            self.factor = shape.n_positions
        else:
            sizes = {"first": ((t, width), t), "bias": ((width,), t)}
            sizes |= {"decoder": ((width,), width), "decoder_bias": ((), width)}
            self.parameters = {name: uniform(stream(seed, "pooled", name), *size, like) for name, size in sizes.items()}

    def answer(self, parameters: dict[str, Tensor], reviews: Pooled, chosen: Any) -> Float[Tensor, " reviews"]:
        """Return the logits of some reviews, differentiable in the parameters."""
        like = parameters["first"]
        seen = to_tensor(reviews.vectors[chosen], device=like.device, dtype=like.dtype)
        if self.network == "uniform_attention":
            seen = seen @ parameters["value"].mT
        hidden = (seen @ parameters["first"] + parameters["bias"]).relu()
        return hidden @ parameters["decoder"] + parameters["decoder_bias"]

    def logits(self, reviews: Pooled) -> Float[np.ndarray, " reviews"]:
        """Return the logit of each review, positive for praise."""
        return self.answer(self.parameters, reviews, slice(None)).double().cpu().numpy()


def _first_layer(weights: Tensor, deviations: Tensor, common: Tensor, lengths: np.ndarray) -> Tensor:
    """The first layer before its bias, in blocks of positions; the longest review comes first."""
    before: list[Tensor] = []
    total: list[Tensor] = []
    for block in weights.split(CHUNK):
        here = deviations[:, len(total) * CHUNK :][:, :CHUNK]
        active = int((lengths > len(total) * CHUNK).sum())
        if active:
            words = here[:active].flatten(1) @ block[: here.shape[1]].flatten(0, 1)
            before.append(functional.pad(words, (0, 0, 0, len(common) - active)))
        total.append(block.sum(0))
    return torch.stack([*before, common @ torch.stack(total).sum(0)]).sum(0)


def initial_weights(
    shape: ReviewShape, seed: int, like: Tensor
) -> tuple[dict[str, Tensor], Float[Tensor, "positions value width"]]:
    """Draw the small parameters of a network, by name, and its first layer; device and type are those of ``like``."""
    t, width, fan_in = shape.dimension, shape.width, shape.n_positions * shape.dimension
    sizes = {"query": (t, t), "key": (t, t), "value": (t, t)}
    small = {name: uniform(stream(seed, name), size, t, like) for name, size in sizes.items()}
    small["bias"] = uniform(stream(seed, "bias"), (width,), fan_in, like)
    small["decoder"] = uniform(stream(seed, "decoder"), (width,), width, like)
    small["decoder_bias"] = uniform(stream(seed, "decoder bias"), (), width, like)
    weights = like.new_empty(shape.n_positions, t, width)
    for first in range(0, shape.n_positions, CHUNK):
        part = weights[first : first + CHUNK]
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
