r"""Networks on samples of $p$ tokens with $t$ entries: Theorem 2, its remark, a control, and the teachers that label.

=====================  ==========================================================================
model                  function
=====================  ==========================================================================
``baseline``           $w^{(2)}\phi(w^{(1)}\mathrm{vec}(x))$
``global_attention``   $w^{(2)}\phi(w^{(1)}(\mathrm{vec}(x)\odot a))$, equation (1): one weight per input
``self_attention``     $w^{(2)}\phi(w^{(1)}\mathrm{vec}(w^Vx\,a^{self}(x)))$, equation (5)
``uniform_attention``  the same with all attention weights $1/p$: a control of this book
``three_layers``       the baseline with a second hidden layer of as many units
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

__all__ = ["Sizes", "TokenModel", "draw_flat_teacher", "draw_teacher", "initial_parameters", "predict"]

TokenModel: TypeAlias = Literal["baseline", "global_attention", "self_attention", "uniform_attention", "three_layers"]

N_SCALE = 20_000  # samples from which the mean and the variance of a teacher's labels are estimated


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network on tokens, each at least 1."""

    n_tokens: int  #: Tokens of a sample
    dimension: int  #: Entries of a token
    n_query: int  #: Entries of a query
    n_value: int  #: Entries of a value
    width: int  #: Hidden units of a layer

    def __post_init__(self) -> None:
        check_sizes(self, *vars(self))


def predict(
    model: TokenModel, parameters: Parameters, inputs: Float[Tensor, "members samples tokens dimension"]
) -> Float[Tensor, "members samples"]:
    """Return the outputs for the samples of each member.

    Args:
        model: Which network.
        parameters: Its weights, named as in :func:`initial_parameters`.
        inputs: The samples, a token in a row.

    Returns:
        One number for each sample.

    Raises:
        ValueError: If there is no such model.
    """
    if model not in get_args(TokenModel):
        raise ValueError(f"model: expected one of {', '.join(get_args(TokenModel))}, got {model!r}")
    seen, hidden = inputs, parameters["hidden"]
    if model == "global_attention":
        hidden = hidden * parameters["mask"].unsqueeze(1)
    if model == "self_attention":
        seen = _attend(parameters, inputs)
    if model == "uniform_attention":
        common = inputs.mean(2) @ parameters["value"].mT
        seen = common.unsqueeze(2).expand(-1, -1, inputs.shape[2], -1)
    activation = (seen.flatten(2) @ hidden.mT).relu()
    if model == "three_layers":
        activation = (activation @ parameters["middle"].mT).relu()
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
    """Draw the weights of one network: variance one over the fan-in, a mask of ones, no offset.

    Args:
        model: Which network.
        seed: Seed of the run.
        restart: Number of the attempt; each has weights of its own.
        sizes: Sizes of the network.

    Returns:
        Name to weights, without member axis.
    """
    rng, dimension = stream(seed, "initial weights", model, restart), sizes.dimension
    attends = model in ("self_attention", "uniform_attention")
    entries = sizes.n_tokens * (sizes.n_value if attends else dimension)
    shapes = {"hidden": (sizes.width, entries), "decoder": (sizes.width,)}
    if model == "three_layers":
        shapes["middle"] = (sizes.width, sizes.width)
    if attends:
        shapes["value"] = (sizes.n_value, dimension)
    if model == "self_attention":
        shapes |= {"query": (sizes.n_query, dimension), "key": (sizes.n_query, dimension)}
    drawn = {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}
    masks = {"mask": np.ones(entries)} if model == "global_attention" else {}
    return drawn | masks | {"offset": np.zeros(())}


def draw_teacher(sizes: Sizes, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return a self-attention network with weights far from uniform, whose labels have mean 0 and variance 1.

    Queries, keys and values are standard normal, the layers have variance one over the fan-in; the paper leaves the
    teacher of Theorem 2 open. For normal inputs the scores have a standard deviation of about ``dimension``.

    Args:
        sizes: Sizes of the network.
        rng: Where it is drawn from.

    Returns:
        Parameters of one member in float64, for :func:`predict`.

    Example:
        >>> sizes = Sizes(n_tokens=3, dimension=2, n_query=2, n_value=2, width=4)
        >>> teacher = draw_teacher(sizes, np.random.default_rng(0))
        >>> predict("self_attention", teacher, torch.zeros(1, 5, 3, 2).double()).shape
        torch.Size([1, 5])
    """
    query, key = rng.standard_normal((2, sizes.n_query, sizes.dimension))
    drawn = {"query": query, "key": key, "value": rng.standard_normal((sizes.n_value, sizes.dimension))}
    return _standardised("self_attention", drawn | _layers(sizes, sizes.n_value, rng), sizes, rng)


def draw_flat_teacher(sizes: Sizes, rng: np.random.Generator, n_relevant: int) -> dict[str, Tensor]:
    """Return a flat network behind a mask that keeps a few inputs, whose labels have mean 0 and variance 1.

    Args:
        sizes: Sizes of the network.
        rng: Where it is drawn from.
        n_relevant: How many entries of a sample matter.

    Returns:
        Parameters of one member in float64, for :func:`predict` as ``global_attention``.
    """
    mask = (rng.permutation(sizes.n_tokens * sizes.dimension) < n_relevant).astype(float)
    drawn = {"mask": mask, **_layers(sizes, sizes.dimension, rng)}
    return _standardised("global_attention", drawn, sizes, rng)


def _layers(sizes: Sizes, entries: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"hidden": (sizes.width, sizes.n_tokens * entries), "decoder": (sizes.width,)}
    return {name: rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}


def _standardised(
    model: TokenModel, drawn: dict[str, np.ndarray], sizes: Sizes, rng: np.random.Generator
) -> dict[str, Tensor]:
    teacher = {name: torch.from_numpy(array)[None] for name, array in drawn.items()}
    teacher["offset"] = teacher["decoder"].new_zeros(1)
    labels = predict(
        model, teacher, torch.from_numpy(rng.standard_normal((1, N_SCALE, sizes.n_tokens, sizes.dimension)))
    )
    scale = labels.std(correction=0)
    return teacher | {"decoder": teacher["decoder"] / scale, "offset": -labels.mean(1) / scale}
