r"""Controls for Table 2: what is left of self-attention when nothing can be attended to.

Freeze query and key matrices at zero. All scores are then 0, every position has the output $o=\frac1P\sum_jw^Vx_j$,
and the first layer sees it $P$ times: $h = S^\top o + b$ with $S=\sum_zW_z$. Each $W_z$ has the same gradient $G$, so
an optimiser that acts on each entry gives all of them the same update $u(G)$, and

$$S \leftarrow S + P\,u(G).$$

**Uniform attention over padding is a bag of words whose first layer has a step size $P$ times larger**: exactly, so
that a network of 55 million weights is trained as one of 36 thousand. ``mean_pooling`` drops the rest too: the mean
of the real word vectors, an ordinary first layer, an ordinary step size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.review_networks import Classifier, ReviewShape, initial_weights, uniform
from attnbook.global_attention.reviews import EncodedReviews

__all__ = ["Control", "Pooled", "PooledNetwork"]

Control: TypeAlias = Literal["uniform_attention", "mean_pooling"]


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
