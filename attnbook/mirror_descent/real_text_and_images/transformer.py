r"""A small pre-norm transformer that reads from a class token, many of them trained as one program.

Tokens $x_t$ are word vectors that stay as they are, or image patches times a learned matrix plus learned positions.
Each layer adds attention, then a network of two linear maps, to the stream; each part sees the layer-normalised stream
$\hat x_t$. Only the class token is read out, so the last layer needs its query $q$ alone. For a head with matrices
$W_K,W_V$ of its own the logit of token $t$ is $\hat x_t^\top W_Kq/\sqrt k$ and what it passes on is
$\bigl(\sum_ts_t\hat x_t\bigr)W_V$: with $W_Kq$ taken first, no key and no value is ever formed, and the cost per token
falls from $O(d^2)$ to $O(dH)$.

Parameters carry a leading member axis. Members that read the same data are $m,\,m+g,\,m+2g,\dots$ where $g$ is the
number of groups in the inputs: frozen tokens are then read once for all members of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor

ATTENTION = ("query", "key", "value", "output")  # of a layer; ``query0`` is that of the first layer
POSITION_SCALE = 0.1


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; frozen tokens have no positions, and one layer."""

    tokens: Literal["frozen", "projected"]  # vectors of the width, or vectors times a learned matrix
    input_size: int  # entries of a token vector
    n_tokens: int  # of an input, without the class token
    n_classes: int = 2
    width: int = 32  # entries of the stream, a multiple of the heads
    n_heads: int = 4
    n_layers: int = 1

    def __post_init__(self) -> None:
        if min(self.n_tokens, self.width, self.n_heads, self.n_layers) < 1:
            raise ValueError(f"n_tokens, width, n_heads, n_layers: expected at least 1, got {self}")
        if self.width % self.n_heads:
            raise ValueError(f"width: expected a multiple of n_heads={self.n_heads}, got {self.width}")
        if self.tokens == "frozen" and (self.input_size, self.n_layers) != (self.width, 1):
            raise ValueError(f"tokens: frozen ones have the width of the stream and one layer, got {self}")


class Inputs(NamedTuple):
    """A batch for each group of members."""

    tokens: Float[Tensor, "groups batch tokens input_size"]
    labels: Int[Tensor, "groups batch"]
    present: Bool[Tensor, "groups batch tokens"] | None = None  # which tokens are there; None when all are


class Output(NamedTuple):
    """Logits, and the attention of the class token in the last layer: to the tokens and, last, to itself."""

    logits: Float[Tensor, "members batch classes"]
    attention: Float[Tensor, "members batch heads tokens_and_class"]


def attention_names(shape: Shape) -> tuple[str, ...]:
    """Return the names of all attention matrices, layer by layer."""
    return tuple(f"{name}{layer}" for layer in range(shape.n_layers) for name in ATTENTION)


def draw_parameters(
    shape: Shape, seeds: Sequence[int], repeats: int = 1, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Parameters:
    """Draw ``(repeats * groups, ...)`` starts, one seed per group: linear maps as torch's linear layers have them."""
    drawn = [_one_start(shape, seed) for seed in seeds]
    stacked = {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
    return {
        name: to_tensor(np.tile(values, (repeats, *[1] * (values.ndim - 1))), device=device, dtype=dtype)
        for name, values in stacked.items()
    }


def forward(parameters: Parameters, shape: Shape, inputs: Inputs) -> Output:
    """Run the network; the number of members is a multiple of the number of groups."""
    members, (groups, batch, *sizes) = len(parameters["class_token"]), inputs.tokens.shape
    if tuple(sizes) != (shape.n_tokens, shape.input_size):
        raise ValueError(f"tokens: expected {(shape.n_tokens, shape.input_size)} per sample, got {tuple(sizes)}")
    if members % groups:
        raise ValueError(f"tokens: expected a number of groups that divides the {members} members, got {groups}")
    stream_ = inputs.tokens
    if shape.tokens == "projected":
        vectors = inputs.tokens.repeat(members // groups, 1, 1, 1).flatten(1, 2) @ parameters["projection"]
        stream_ = vectors.unflatten(1, (batch, shape.n_tokens)) + parameters["positions"].unsqueeze(1)
    class_token = parameters["class_token"].unsqueeze(1).expand(members, batch, shape.width)
    for layer in range(shape.n_layers - 1):
        stream_, class_token = _full_layer(parameters, shape, layer, stream_, class_token)
    last = shape.n_layers - 1
    attended, attention = _class_attention(parameters, shape, last, stream_, class_token, inputs.present)
    read = class_token + attended
    read = read + _feed_forward(parameters, last, read)
    logits = _normed(parameters, "final", read) @ parameters["head"] + parameters["head_bias"].unsqueeze(1)
    return Output(logits, attention)


def _one_start(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    d, size = shape.width, shape.input_size
    start: dict[str, np.ndarray] = {}
    if shape.tokens == "projected":
        start["projection"] = _uniform(seed, "projection", (size, d), size)
        start["positions"] = POSITION_SCALE * stream(seed, "positions").standard_normal((shape.n_tokens, d))
    start["class_token"] = POSITION_SCALE * stream(seed, "class token").standard_normal(d)
    for layer in range(shape.n_layers):
        for name in ATTENTION:
            start[f"{name}{layer}"] = _uniform(seed, f"{name}{layer}", (d, d), d)
        for name, size_in, size_out in (("up", d, 2 * d), ("down", 2 * d, d)):
            start[f"{name}{layer}"] = _uniform(seed, f"{name}{layer}", (size_in, size_out), size_in)
            start[f"{name}_bias{layer}"] = _uniform(seed, f"{name}_bias{layer}", (size_out,), size_in)
    start["head"] = _uniform(seed, "head", (d, shape.n_classes), d)
    start["head_bias"] = _uniform(seed, "head bias", (shape.n_classes,), d)
    for norm in ("final", *(f"{name}{layer}" for layer in range(shape.n_layers) for name in ("attend", "feed"))):
        start[f"{norm}_gain"], start[f"{norm}_shift"] = np.ones(d), np.zeros(d)
    return start


def _uniform(seed: int, name: str, size: tuple[int, ...], fan_in: int) -> np.ndarray:
    return stream(seed, name).uniform(-(fan_in**-0.5), fan_in**-0.5, size)


def _class_attention(
    p: Parameters, shape: Shape, layer: int, tokens: Tensor, class_token: Tensor, present: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the class token reads, ``(members, batch, width)``, and its attention."""
    (members, batch, d), heads = class_token.shape, shape.n_heads
    groups, n_tokens = len(tokens), tokens.shape[2]
    gain, shift = p[f"attend{layer}_gain"], p[f"attend{layer}_shift"]
    plain = functional.layer_norm(tokens, (d,)).flatten(0, 1)
    own = functional.layer_norm(class_token, (d,))
    query = _split((own * gain.unsqueeze(1) + shift.unsqueeze(1)) @ p[f"query{layer}"], heads)
    # The gain of the norm belongs to the folded key; its shift adds the same to every logit, so it drops out.
    folded = query @ _split(p[f"key{layer}"], heads).mT * (gain / math.sqrt(d // heads)).view(members, 1, 1, d)
    rows = _by_group(folded, groups)
    logits = rows @ plain.mT
    if present is not None:
        gone = ~present.repeat(groups // len(present), 1, 1).flatten(0, 1).unsqueeze(1)
        logits = logits.masked_fill(gone, -torch.inf)
    to_itself = _by_group((folded * own.unsqueeze(1)).sum(-1, keepdim=True), groups)
    weights = torch.cat([logits, to_itself], dim=-1).softmax(-1)
    read = _by_member(weights[..., :n_tokens] @ plain, members, batch, heads)
    weights = _by_member(weights, members, batch, heads)
    read = read + weights[..., n_tokens:] * own.unsqueeze(1)
    read = read * gain.view(members, 1, 1, d) + shift.view(members, 1, 1, d)
    passed_on = (read @ _split(p[f"value{layer}"], heads)).transpose(1, 2).flatten(2)
    return passed_on @ p[f"output{layer}"], weights.transpose(1, 2)


def _by_group(rows: Tensor, groups: int) -> Tensor:
    """``(members, heads, batch, k)`` to ``(groups * batch, repeats * heads, k)``."""
    members, heads, batch, k = rows.shape
    split = rows.view(members // groups, groups, heads, batch, k)
    return split.permute(1, 3, 0, 2, 4).reshape(groups * batch, -1, k)


def _by_member(rows: Tensor, members: int, batch: int, heads: int) -> Tensor:
    """Undo :func:`_by_group`."""
    split = rows.view(-1, batch, rows.shape[1] // heads, heads, rows.shape[2])
    return split.permute(2, 0, 3, 1, 4).reshape(members, heads, batch, rows.shape[2])


def _full_layer(p: Parameters, shape: Shape, layer: int, tokens: Tensor, class_token: Tensor) -> tuple[Tensor, Tensor]:
    """A layer in which every token asks: the new streams of tokens and class token."""
    members, batch = class_token.shape[:2]
    everything = torch.cat([tokens, class_token.unsqueeze(2)], dim=2)
    rows = everything.flatten(1, 2)
    normed = _normed(p, f"attend{layer}", rows)
    # Four axes, not five: torch's fused kernel takes no more.
    parts = [
        (normed @ p[f"{name}{layer}"]).view(members * batch, -1, shape.n_heads, shape.width // shape.n_heads)
        for name in ATTENTION[:3]
    ]
    queries, keys, values = (part.transpose(1, 2) for part in parts)
    found = functional.scaled_dot_product_attention(queries, keys, values)
    rows = rows + found.transpose(1, 2).reshape(rows.shape) @ p[f"output{layer}"]
    rows = rows + _feed_forward(p, layer, rows)
    new = rows.view_as(everything)
    return new[:, :, :-1], new[:, :, -1]


def _feed_forward(p: Parameters, layer: int, rows: Tensor) -> Tensor:
    hidden = _normed(p, f"feed{layer}", rows) @ p[f"up{layer}"] + p[f"up_bias{layer}"].unsqueeze(1)
    return functional.gelu(hidden) @ p[f"down{layer}"] + p[f"down_bias{layer}"].unsqueeze(1)


def _normed(p: Parameters, name: str, rows: Tensor) -> Tensor:
    normed = functional.layer_norm(rows, rows.shape[-1:])
    return normed * p[f"{name}_gain"].unsqueeze(1) + p[f"{name}_shift"].unsqueeze(1)


def _split(rows: Tensor, heads: int) -> Tensor:
    """Give each head its columns: ``(members, rows, width)`` to ``(members, heads, rows, width / heads)``."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)
