r"""Networks on samples of $p$ tokens with $t$ entries: Theorem 2, its remark, a control, and the teacher that labels.

=====================  ==========================================================================
model                  function
=====================  ==========================================================================
``baseline``           $w^{(2)}\phi(w^{(1)}\mathrm{vec}(x))$
``global_attention``   $w^{(2)}\phi(w^{(1)}(\mathrm{vec}(x)\odot a))$, equation (1): one weight per input
``self_attention``     $w^{(2)}\phi(w^{(1)}\mathrm{vec}(w^Vx\,a^{self}(x)))$, equation (5); the teacher's form, too
``uniform_attention``  the same with all attention weights $1/p$: a control of this book
=====================  ==========================================================================

ReLU, and no biases but one: a number added to the output, since labels have mean zero. Parameters carry a leading
member axis. Names: ``n_tokens`` is $p$, ``dimension`` $t$, ``n_query`` $d_q$, ``n_value`` $d_v$, ``width`` $d$,
``hidden`` $w^{(1)}$, ``decoder`` $w^{(2)}$, ``query``, ``key`` and ``value`` $w^Q$, $w^K$ and $w^V$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream
from attnbook.core.settings import check_sizes

__all__ = ["MODELS", "Sizes", "TokenModel", "draw_teacher", "initial_parameters", "predict"]

TokenModel: TypeAlias = Literal["baseline", "global_attention", "self_attention", "uniform_attention"]
MODELS: tuple[TokenModel, ...] = get_args(TokenModel)

N_SCALE = 20_000  # samples from which the mean and the variance of a teacher's labels are estimated


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network on tokens, each at least 1."""

    n_tokens: int  #: Tokens of a sample
    dimension: int  #: Entries of a token
    n_query: int  #: Entries of a query
    n_value: int  #: Entries of a value
    width: int  #: Hidden units

    def __post_init__(self) -> None:
        check_sizes(self, *vars(self))


def predict(
    model: TokenModel, parameters: Parameters, inputs: Float[Tensor, "members samples tokens dimension"]
) -> Float[Tensor, "members samples"]:
    """Return the outputs for the samples of each member; parameters are named as in :func:`initial_parameters`."""
    if model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {model!r}")
    seen, hidden = inputs, parameters["hidden"]
    if model == "global_attention":
        hidden = hidden * parameters["mask"].unsqueeze(1)
    if model == "self_attention":
        seen = _attend(parameters, inputs)
    if model == "uniform_attention":
        common = inputs.mean(2) @ parameters["value"].mT
        seen = common.unsqueeze(2).expand(-1, -1, inputs.shape[2], -1)
    activation = (seen.flatten(2) @ hidden.mT).relu()
    return (activation @ parameters["decoder"].unsqueeze(-1)).squeeze(-1) + parameters["offset"].unsqueeze(-1)


def _attend(parameters: Parameters, inputs: Tensor) -> Tensor:
    # Samples go last: products and softmax of a few tokens then run along long rows, in a fraction of the time.
    words = inputs.permute(0, 3, 2, 1).contiguous()  # members, entries, tokens, samples
    merged = parameters["key"].mT @ parameters["query"] / parameters["query"].shape[1] ** 0.5
    heard, value = ((m @ words.flatten(2)).unflatten(2, words.shape[2:]) for m in (merged, parameters["value"]))
    scores = (heard.unsqueeze(3) * words.unsqueeze(2)).sum(1)
    weights = scores.softmax(2).unsqueeze(2)  # of a token (second axis) to each token (fourth)
    return (weights * value.unsqueeze(1)).sum(3).permute(0, 3, 1, 2)


def initial_parameters(model: TokenModel, seed: int, restart: int, sizes: Sizes) -> dict[str, np.ndarray]:
    """Draw the weights of one network, without member axis: variance one over the fan-in, a mask of ones, no offset."""
    rng, dimension = stream(seed, "initial weights", model, restart), sizes.dimension
    attends = model in ("self_attention", "uniform_attention")
    entries = sizes.n_tokens * (sizes.n_value if attends else dimension)
    drawn = {
        "hidden": rng.standard_normal((sizes.width, entries)) / np.sqrt(entries),
        "decoder": rng.standard_normal(sizes.width) / np.sqrt(sizes.width),
        "offset": np.zeros(()),
    }
    if model == "global_attention":
        drawn["mask"] = np.ones(entries)
    rows = {"value": sizes.n_value} if attends else {}
    if model == "self_attention":
        rows |= {"query": sizes.n_query, "key": sizes.n_query}
    return drawn | {name: rng.standard_normal((n, dimension)) / np.sqrt(dimension) for name, n in rows.items()}


def draw_teacher(sizes: Sizes, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return a self-attention network with weights far from uniform, whose labels have mean 0 and variance 1.

    It has one member, in float64, for :func:`predict`. Queries, keys and values are standard normal, the layers have
    variance one over the fan-in; the paper leaves the teacher of Theorem 2 open. For normal inputs the scores have a
    standard deviation of about ``dimension``.

    Example:
        >>> sizes = Sizes(n_tokens=3, dimension=2, n_query=2, n_value=2, width=4)
        >>> teacher = draw_teacher(sizes, np.random.default_rng(0))
        >>> predict("self_attention", teacher, torch.zeros(1, 5, 3, 2).double()).shape
        torch.Size([1, 5])
    """
    entries = sizes.n_tokens * sizes.n_value
    query, key = rng.standard_normal((2, sizes.n_query, sizes.dimension))
    drawn = {"query": query, "key": key, "value": rng.standard_normal((sizes.n_value, sizes.dimension))}
    drawn["hidden"] = rng.standard_normal((sizes.width, entries)) / np.sqrt(entries)
    drawn["decoder"] = rng.standard_normal(sizes.width) / np.sqrt(sizes.width)
    teacher = {name: torch.from_numpy(array)[None] for name, array in drawn.items()}
    teacher["offset"] = torch.zeros(1, device="cpu", dtype=torch.float64)
    inputs = torch.from_numpy(rng.standard_normal((1, N_SCALE, sizes.n_tokens, sizes.dimension)))
    labels = predict("self_attention", teacher, inputs)
    scale = labels.std(correction=0)
    return teacher | {"decoder": teacher["decoder"] / scale, "offset": -labels.mean(1) / scale}
