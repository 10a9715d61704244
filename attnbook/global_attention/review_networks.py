r"""The two networks of Table 2 without computing on padding, and a control.

A review has $P$ positions of word vectors, zero after its last word. The networks differ in what the first layer sees:

=====================  ==============================================================================
network                input of the first layer at position $z$
=====================  ==============================================================================
``baseline``           the word vector $x_z$
``self_attention``     $o_z = w^VXa^{(z)}$ of equations (4) and (5)
``uniform_attention``  the same, query and key matrices frozen at zero: all attention weights are $1/P$
=====================  ==============================================================================

The first layer is ReLU with ``width`` units and a matrix $W_z$ of its own at every position, the second one logit; only
these two have biases. After the last of the $L_i$ words of review $i$ all inputs are the same vector $c_i$ (the output
of padding; zero for the baseline), so that

$$h_i = S^\top c_i + \sum_{z\le L_i} W_z^\top(o_{iz}-c_i),\qquad S=\sum_{z\le P} W_z .$$

With uniform attention the sum is zero, and each $W_z$ has the same gradient $G$. An optimiser that acts on each entry
gives all of them the same update $u(G)$, and $S$ moves by $P\,u(G)$: **uniform attention over padding is a bag of words
whose first layer has a step size $P$ times larger.** So $S$ alone is kept and trained, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pad_sequence

from attnbook.core.rng import stream, to_tensor
from attnbook.core.settings import check_sizes
from attnbook.global_attention.padding_free_attention import attend, attention_weights, merge_key_query
from attnbook.global_attention.reviews import EncodedReviews

__all__ = ["NETWORKS", "ReviewNetwork", "ReviewShape", "initial_weights"]

NETWORKS = "baseline", "self_attention", "uniform_attention"
BLOCK = 64  # positions whose first weights are drawn at a time


@dataclass(frozen=True)
class ReviewShape:
    """Sizes of a network for reviews."""

    n_positions: int  #: Positions after padding; 2142 in Table 2
    dimension: int  #: Entries of a word vector; 100 in Table 2. Queries, keys and values have as many.
    width: int  #: Hidden units; 256 in Table 2

    def __post_init__(self) -> None:
        check_sizes(self, "n_positions", "dimension", "width")


class ReviewNetwork:
    """A network of Table 2 or the control; weights start uniform within one over the root of the fan-in, as in torch.

    Args:
        network: Which one, of ``NETWORKS``.
        shape: Its sizes.
        vectors: Word vectors, row 0 zero; device and type of the computation are theirs.
        seed: Seed of the initial weights; all networks of a seed start with the same layers.

    Attributes:
        parameters: Name to tensor, as an optimiser moves them.

    Raises:
        ValueError: If the network is unknown, or the vectors have another dimension or no row of zeros.
    """

    def __init__(
        self, network: str, shape: ReviewShape, vectors: Float[Tensor, "vocabulary dimension"], *, seed: int
    ) -> None:
        if network not in NETWORKS:
            raise ValueError(f"network: expected one of {', '.join(NETWORKS)}, got {network!r}")
        if vectors.shape[1] != shape.dimension or vectors[0].any():
            raise ValueError(f"vectors: expected {shape.dimension} entries and a row 0 of zeros, got {vectors.shape}")
        self.network, self.shape, self.vectors = network, shape, vectors
        self.parameters = initial_weights(shape, seed, vectors)
        for name in {"baseline": ("query", "key", "value"), "uniform_attention": ("query", "key")}.get(network, ()):
            del self.parameters[name]
        if network == "uniform_attention":
            self.parameters["first"] = self.parameters["first"].sum(0)

    def groups(self, step_size: float) -> list[dict[str, Any]]:
        """Return the first layer and the rest with their step sizes, as torch's optimisers take them."""
        rest = [tensor for name, tensor in self.parameters.items() if name != "first"]
        first = step_size * (self.shape.n_positions if self.network == "uniform_attention" else 1)
        return [{"params": [self.parameters["first"]], "lr": first}, {"params": rest, "lr": step_size}]

    def step(self, reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]) -> float:
        """Set the gradient of the mean cross-entropy over some reviews, and return that loss."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in self.parameters.items()}
        logits = self.answer(leaves, reviews, chosen)
        labels = to_tensor(reviews.labels[chosen], device=logits.device, dtype=logits.dtype)
        loss = binary_cross_entropy_with_logits(logits, labels)
        for tensor, gradient in zip(
            self.parameters.values(), torch.autograd.grad(loss, list(leaves.values())), strict=True
        ):
            tensor.grad = gradient
        return float(loss.detach())

    def answer(
        self, parameters: dict[str, Tensor], reviews: EncodedReviews, chosen: Int[np.ndarray, " reviews"]
    ) -> Float[Tensor, " reviews"]:
        """Return the logits of some reviews, positive for praise; differentiable in the parameters.

        Args:
            parameters: Of this network.
            reviews: Many reviews.
            chosen: Which of them.

        Returns:
            A logit for each.

        Raises:
            ValueError: If a review has more words than there are positions.
        """
        longest = int(reviews.lengths[chosen].max(initial=1))
        if longest > self.shape.n_positions:
            raise ValueError(f"reviews: expected at most {self.shape.n_positions} words, got {longest}")
        words, first = [self._words(reviews, one) for one in chosen], parameters["first"]
        if self.network == "uniform_attention":
            pooled = torch.stack([one.sum(0) for one in words]) / self.shape.n_positions
            before = pooled @ parameters["value"].mT @ first
        else:
            common = words[0].new_zeros(len(words), self.shape.dimension)
            if self.network == "self_attention":
                merged = merge_key_query(parameters["query"], parameters["key"])
                seen = [attend(one[None], merged, parameters["value"], self.shape.n_positions) for one in words]
                words, common = [(at - rest)[0] for at, rest in seen], torch.cat([rest for _, rest in seen])
            before = pad_sequence(words, batch_first=True).flatten(1) @ first[:longest].flatten(0, 1)
            before = before + common @ first.sum(0)
        hidden = (before + parameters["bias"]).relu()
        return hidden @ parameters["decoder"] + parameters["decoder_bias"]

    def _words(self, reviews: EncodedReviews, review: int) -> Tensor:
        """The word vectors of a review, one of zeros where it has none."""
        ids = torch.from_numpy(reviews.words(review)).to(self.vectors.device)
        return self.vectors[ids] if len(ids) else self.vectors[:1]

    @torch.no_grad()
    def accuracy(self, reviews: EncodedReviews) -> float:
        """Return the share of reviews in per cent whose sign is right."""
        parts = np.array_split(np.arange(len(reviews)), -(-len(reviews) // 64))
        logits = torch.cat([self.answer(self.parameters, reviews, part) for part in parts]).cpu().numpy()
        return float(100 * np.mean((logits > 0) == (reviews.labels > 0.5)))

    @torch.no_grad()
    def mass_on_words(self, reviews: EncodedReviews) -> float:
        """Return the mean over words, then over reviews, of the attention that does not fall on padding."""
        merged = merge_key_query(self.parameters["query"], self.parameters["key"])
        words = [self._words(reviews, one) for one in range(len(reviews))]
        weights = [attention_weights(one[None], merged, self.shape.n_positions) for one in words]
        return float(np.mean([float(each.sum(-1).mean()) for each in weights]))


def initial_weights(shape: ReviewShape, seed: int, like: Tensor) -> dict[str, Tensor]:
    """Draw where a network starts, uniform within one over the root of the fan-in.

    Args:
        shape: Its sizes.
        seed: Seed of the weights.
        like: A tensor of the wanted device and type.

    Returns:
        All weights by name; ``first`` is ``(positions, value, width)``.
    """
    t, width, fan_in = shape.dimension, shape.width, shape.n_positions * shape.dimension

    def uniform(size: tuple[int, ...], inputs: int, *purpose: str | int) -> Tensor:
        drawn = stream(seed, *purpose).uniform(-(inputs**-0.5), inputs**-0.5, size)
        return to_tensor(drawn, device=like.device, dtype=like.dtype)

    found = {name: uniform((t, t), t, name) for name in ("query", "key", "value")}
    found["bias"] = uniform((width,), fan_in, "bias")
    found |= {"decoder": uniform((width,), width, "decoder"), "decoder_bias": uniform((), width, "decoder bias")}
    blocks = range(0, shape.n_positions, BLOCK)
    sizes = [min(BLOCK, shape.n_positions - at) for at in blocks]
    drawn = [uniform((size, t, width), fan_in, "first layer", at) for at, size in zip(blocks, sizes, strict=True)]
    return found | {"first": torch.cat(drawn)}
