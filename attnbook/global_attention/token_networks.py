r"""The three networks of Theorem 2 and its remark, and a control, on samples of $p$ tokens with $t$ entries.

=====================  ==========================================================================
model                  function
=====================  ==========================================================================
``baseline``           $w^{(2)}\phi(w^{(1)}\mathrm{vec}(x))$
``global_attention``   $w^{(2)}\phi(w^{(1)}(\mathrm{vec}(x)\odot a))$, equation (1): one weight per input
``self_attention``     $w^{(2)}\phi(w^{(1)}\mathrm{vec}(w^Vx\,a^{self}(x)))$, equation (5)
``uniform_attention``  the same with all attention weights $1/p$: a control of this book
=====================  ==========================================================================

All have the same number of hidden units, ReLU and no biases but one: a number added to the output, since the labels
have mean zero. Parameters carry a leading member axis.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream

__all__ = ["MODELS", "TokenModel", "initial_parameters", "predict"]

TokenModel: TypeAlias = Literal["baseline", "global_attention", "self_attention", "uniform_attention"]
MODELS: tuple[TokenModel, ...] = get_args(TokenModel)


def predict(
    model: TokenModel, parameters: Parameters, inputs: Float[Tensor, "members samples tokens dimension"]
) -> Float[Tensor, "members samples"]:
    """Return the output of each member for its own samples.

    Args:
        model: Which network.
        parameters: As :func:`initial_parameters` names them.
        inputs: Samples of each member.

    Returns:
        Predictions.

    Raises:
        ValueError: If the model is unknown.
    """
    if model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {model!r}")
    seen, hidden = inputs, parameters["hidden"]
    if model == "global_attention":
        hidden = hidden * parameters["mask"].unsqueeze(1)
    if model == "self_attention":
        query, key, value = (inputs @ parameters[name].unsqueeze(1).mT for name in ("query", "key", "value"))
        seen = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
    if model == "uniform_attention":
        seen = (inputs @ parameters["value"].unsqueeze(1).mT).mean(2, keepdim=True).expand(-1, -1, inputs.shape[2], -1)
    activation = (seen.flatten(2) @ hidden.mT).relu()
    return (activation @ parameters["decoder"].unsqueeze(-1)).squeeze(-1) + parameters["offset"].unsqueeze(-1)


def initial_parameters(
    model: TokenModel, seed: int, restart: int, *, n_tokens: int, dimension: int, n_query: int, n_value: int, width: int
) -> dict[str, np.ndarray]:
    """Draw the initial weights of one network: variance one over the fan-in, mask of ones.

    Args:
        model: Which network.
        seed: Seed.
        restart: Number of the restart; another restart has other weights.
        n_tokens: Tokens of a sample.
        dimension: Entries of a token.
        n_query: Entries of a query.
        n_value: Entries of a value.
        width: Hidden units.

    Returns:
        Name to array, without the member axis.
    """
    rng = stream(seed, "initial weights", model, restart)
    attends = model in ("self_attention", "uniform_attention")
    entries = n_tokens * (n_value if attends else dimension)
    drawn = {
        "hidden": rng.standard_normal((width, entries)) / np.sqrt(entries),
        "decoder": rng.standard_normal(width) / np.sqrt(width),
        "offset": np.zeros(()),
    }
    if model == "global_attention":
        drawn["mask"] = np.ones(entries)
    if attends:
        sizes = {"value": n_value}
        if model == "self_attention":
            sizes |= {"query": n_query, "key": n_query}
        drawn |= {name: rng.standard_normal((size, dimension)) / np.sqrt(dimension) for name, size in sizes.items()}
    return drawn
