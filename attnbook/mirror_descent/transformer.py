r"""A small pre-norm transformer that reads from a class token, many of them trained as one program.

Tokens $x_t$ are word vectors (frozen, or learned) or image patches times a learned matrix. Each layer adds attention,
then a network of two linear maps, to the stream; each part sees the layer-normalised stream $\hat x_t$. Only the class
token is read out, so the last layer needs its query $q$ alone. For a head with matrices $W_K,W_V$ of its own the logit
of token $t$ is $\hat x_t^\top W_Kq/\sqrt k$ and what it passes on is $\bigl(\sum_ts_t\hat x_t\bigr)W_V$: with
$W_Kq$ taken first, no key and no value is ever formed, and the cost per token falls from $O(d^2)$ to $O(dH)$.

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

__all__ = ["ATTENTION", "Inputs", "Output", "Shape", "attention_names", "draw_parameters", "forward"]

ATTENTION = ("query", "key", "value", "output")
"""The four attention matrices of a layer; ``query0`` is that of the first layer."""

POSITION_SCALE = 0.1


@dataclass(frozen=True)
class Shape:
    """Sizes of the network.

    Attributes:
        tokens: ``frozen`` vectors of ``width`` entries, ``projected`` vectors times a learned matrix, or ``words``:
            numbers of learned vectors.
        input_size: Entries of a token vector, or the number of words.
        n_tokens: Tokens of an input, without the class token.
        n_classes: Number of classes; default 2.
        width: Entries of the stream, a multiple of ``n_heads``; default 32.
        n_heads: Heads of each layer; default 4.
        n_layers: Layers; default 1.
        positions: Whether tokens carry learned positions; without them the first layer cannot see their order.
            Default true; not with frozen tokens and one layer, whose speed rests on their absence.
    """

    tokens: Literal["frozen", "projected", "words"]
    input_size: int
    n_tokens: int
    n_classes: int = 2
    width: int = 32
    n_heads: int = 4
    n_layers: int = 1
    positions: bool = True

    def __post_init__(self) -> None:
        if self.tokens not in ("frozen", "projected", "words"):
            raise ValueError(f"tokens: expected 'frozen', 'projected' or 'words', got {self.tokens!r}")
        for name in ("input_size", "n_tokens", "n_classes", "width", "n_heads", "n_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.width % self.n_heads:
            raise ValueError(f"width: expected a multiple of n_heads={self.n_heads}, got {self.width}")
        if self.tokens == "frozen" and self.input_size != self.width:
            raise ValueError(
                f"input_size: frozen tokens have the width {self.width} of the stream, got {self.input_size}"
            )


class Inputs(NamedTuple):
    """A batch for each group of members.

    Attributes:
        tokens: Vectors ``(groups, batch, tokens, input_size)``, or numbers of words ``(groups, batch, tokens)``.
        labels: Classes ``(groups, batch)``.
        present: Which tokens are there ``(groups, batch, tokens)``; None when all are.
    """

    tokens: Tensor
    labels: Int[Tensor, "groups batch"]
    present: Bool[Tensor, "groups batch tokens"] | None = None


class Output(NamedTuple):
    """What the network returns.

    Attributes:
        logits: Of each class.
        attention: Weights that the class token gives to the tokens and, last, to itself, in the last layer.
    """

    logits: Float[Tensor, "members batch classes"]
    attention: Float[Tensor, "members batch heads tokens_and_class"]


def attention_names(shape: Shape) -> tuple[str, ...]:
    """Return the names of all attention matrices, layer by layer.

    Args:
        shape: Sizes of the network.

    Returns:
        Names of parameters.

    Example:
        >>> attention_names(Shape("frozen", 32, 64, positions=False))
        ('query0', 'key0', 'value0', 'output0')
    """
    return tuple(f"{name}{layer}" for layer in range(shape.n_layers) for name in ATTENTION)


def draw_parameters(
    shape: Shape, seeds: Sequence[int], repeats: int = 1, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Parameters:
    """Draw initial values: linear maps as torch's linear layers start, word vectors standard normal.

    Args:
        shape: Sizes of the network.
        seeds: One seed per group; members of a group start alike.
        repeats: Members per group; default 1.
        dtype: Type of the parameters; default float32.
        device: Where they are wanted; default the CPU.

    Returns:
        Parameters ``(repeats * groups, ...)``; groups vary fastest.

    Raises:
        ValueError: If there is no seed, or ``repeats`` is not positive.
    """
    if not seeds or repeats < 1:
        raise ValueError(f"seeds, repeats: expected at least one of each, got {tuple(seeds)} and {repeats}")
    drawn = [_one_start(shape, seed) for seed in seeds]
    stacked = {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
    return {
        name: to_tensor(np.tile(values, (repeats, *[1] * (values.ndim - 1))), device=device, dtype=dtype)
        for name, values in stacked.items()
    }


def forward(parameters: Parameters, shape: Shape, inputs: Inputs) -> Output:
    """Run the network.

    Args:
        parameters: As from :func:`draw_parameters`, ``(members, ...)``.
        shape: Sizes of the network.
        inputs: One batch per group; the number of members is a multiple of the number of groups.

    Returns:
        Logits and the attention of the class token.

    Raises:
        ValueError: If tokens or groups do not fit.
    """
    stream_ = _tokens(parameters, shape, inputs)
    members, batch = len(parameters["class_token"]), inputs.tokens.shape[1]
    class_token = parameters["class_token"].unsqueeze(1).expand(members, batch, shape.width)
    for layer in range(shape.n_layers - 1):
        stream_, class_token = _full_layer(parameters, shape, layer, stream_, class_token, inputs.present)
    last = shape.n_layers - 1
    attended, attention = _class_attention(parameters, shape, last, stream_, class_token, inputs.present)
    read = class_token + attended
    read = read + _feed_forward(parameters, last, read)
    logits = _normed(parameters, "final", read) @ parameters["head"] + parameters["head_bias"].unsqueeze(1)
    return Output(logits, attention)


def _one_start(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    d, size = shape.width, shape.input_size
    start: dict[str, np.ndarray] = {}
    if shape.tokens == "words":
        start["words"] = stream(seed, "words").standard_normal((size, d))
    elif shape.tokens == "projected":
        start["projection"] = _uniform(seed, "projection", (size, d), size)
    if shape.positions:
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


def _tokens(p: Parameters, shape: Shape, inputs: Inputs) -> Tensor:
    """The stream of the tokens, ``(groups, batch, tokens, width)`` when frozen, else ``(members, ...)``."""
    expected = (shape.n_tokens,) if shape.tokens == "words" else (shape.n_tokens, shape.input_size)
    members, groups = len(p["class_token"]), len(inputs.tokens)
    if tuple(inputs.tokens.shape[2:]) != expected:
        raise ValueError(f"tokens: expected (groups, batch, {expected}), got {tuple(inputs.tokens.shape)}")
    if members % groups:
        raise ValueError(f"tokens: expected a number of groups that divides the {members} members, got {groups}")
    if shape.tokens == "frozen":
        found = inputs.tokens
    elif shape.tokens == "words":
        numbers = inputs.tokens.repeat(members // groups, 1, 1)
        offsets = torch.arange(members, device=numbers.device).view(-1, 1, 1) * shape.input_size
        found = functional.embedding(numbers + offsets, p["words"].flatten(0, 1))
    else:
        found = (inputs.tokens.repeat(members // groups, 1, 1, 1).flatten(1, 2) @ p["projection"]).unflatten(
            1, inputs.tokens.shape[1:3]
        )
    if not shape.positions:
        return found
    return found.repeat(members // len(found), 1, 1, 1) + p["positions"].unsqueeze(1)


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


def _full_layer(
    p: Parameters, shape: Shape, layer: int, tokens: Tensor, class_token: Tensor, present: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A layer in which every token asks: the new streams of tokens and class token."""
    members, batch = class_token.shape[:2]
    everything = torch.cat([tokens.repeat(members // len(tokens), 1, 1, 1), class_token.unsqueeze(2)], dim=2)
    rows = everything.flatten(1, 2)
    normed = _normed(p, f"attend{layer}", rows)
    # Four axes, not five: torch's fused kernel takes no more.
    parts = [
        (normed @ p[f"{name}{layer}"]).view(members * batch, -1, shape.n_heads, shape.width // shape.n_heads)
        for name in ATTENTION[:3]
    ]
    mask = None
    if present is not None:
        itself = torch.ones_like(present[..., :1])
        mask = torch.cat([present, itself], dim=-1).repeat(members // len(present), 1, 1).flatten(0, 1)[:, None, None]
    queries, keys, values = (part.transpose(1, 2) for part in parts)
    found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
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
