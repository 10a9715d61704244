"""Appendix H: self-attention written as a two-layer softmax network, and what the difference is.

Identities at small sizes, against the definitions and automatic differentiation; two ranks; one condition number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.attention_logits import logits_by_tensor_trick, uniform_condition
from attnbook.softmax_ntk.experiments.runs import over_runs
from attnbook.softmax_ntk.self_attention import (
    attention_weights,
    contexts,
    loss_and_gradients,
    outputs,
    row_as_network,
)
from attnbook.softmax_ntk.two_layer import Networks, predict

__all__ = ["Settings", "ToSelfAttention", "run"]

# Singular values below this part of the largest count as zero.
SINGULAR = 1e-9


@dataclass(frozen=True)
class Settings:
    """Sizes of the checks.

    Attributes:
        n_sequences: Sequences in the checks of gradients and kernel.
        length: Tokens of a sequence.
        dimension: Entries of a token.
        n_outputs: Outputs of the layer.
        lengths: Lengths of sequences at which the kernel of the softmax weights is taken.
        few: Numbers of sequences for which the rank of the values' problem is counted.
        many: Number of sequences for which its condition number is measured.
        mean_norms: Norms of the mean that all tokens share, in that measurement.
        seeds: Seeds of tokens and weights.
        chunk: Seeds kept together.
    """

    n_sequences: int = 11
    length: int = 7
    dimension: int = 5
    n_outputs: int = 3
    lengths: tuple[int, ...] = (7, 14, 28)
    few: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10)
    many: int = 4000
    mean_norms: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        check_seeds(self.seeds, self.chunk)
        if not self.few or min(self.few) < 1:
            raise ValueError(f"few: expected numbers of sequences of at least 1, got {self.few}")
        shortest = min(self.lengths, default=0)
        if self.dimension**2 >= self.n_sequences * shortest * self.n_outputs:
            raise ValueError(
                f"n_sequences: the kernel needs more outputs than the {self.dimension**2} softmax weights, got "
                f"{self.n_sequences} sequences of {shortest} tokens with {self.n_outputs} outputs"
            )

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second; the identities hold at any size."""
        return cls(n_sequences=5, dimension=3, lengths=(7, 11), many=500, mean_norms=(0.0, 2.0), seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger check; the paper has none."""
        return cls(
            n_sequences=31, length=13, dimension=11, n_outputs=7, lengths=(13, 26), few=(1, 5, 11, 17),
            seeds=tuple(range(10)),
        )  # fmt: skip


@dataclass(frozen=True)
class ToSelfAttention(Result):
    r"""Errors, ranks and condition numbers; the first axis runs over seeds.

    Attributes:
        tensor_error: Largest difference between the layer and its form by the tensor trick, ``(seeds,)``.
        row_error: The same for its rows as two-layer networks.
        gradient_error: Relative error of the closed-form gradients of both matrices against automatic
            differentiation.
        envelope_error: The same of the gradient at solved values against differentiation through the solve.
        factor_change: Largest change of the attention weights under $Q\mapsto QA$, $K\mapsto KA^{-\top}$.
        shift_change: The same under $QK^\top\mapsto QK^\top+ue^\top$, where every token has a 1 in the coordinate of
            $e$.
        kernel_rank: Rank of the kernel of the softmax weights, ``(seeds, lengths)``.
        uniform_rank: Rank of the contexts at uniform attention, ``(seeds, few)``.
        condition: Condition number of the values' problem at uniform attention, ``(seeds, mean_norms)``.
        sharp_condition: The same when each token attends to itself only.
    """

    experiment: ClassVar[str] = "softmax_ntk.to_self_attention"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    tensor_error: Float[np.ndarray, " seeds"]
    row_error: Float[np.ndarray, " seeds"]
    gradient_error: Float[np.ndarray, " seeds"]
    envelope_error: Float[np.ndarray, " seeds"]
    factor_change: Float[np.ndarray, " seeds"]
    shift_change: Float[np.ndarray, " seeds"]
    kernel_rank: Float[np.ndarray, "seeds lengths"]
    uniform_rank: Float[np.ndarray, "seeds few"]
    condition: Float[np.ndarray, "seeds mean_norms"]
    sharp_condition: Float[np.ndarray, "seeds mean_norms"]

    @property
    def sizes(self) -> dict[str, int]:
        """Softmax weights, and outputs of the layer whose kernel is taken, on the shortest sequences."""
        s = self.settings
        return {"softmax_weights": s.dimension**2, "n_outputs": s.n_sequences * min(s.lengths) * s.n_outputs}

    def measurements(self) -> dict[str, Measurement]:
        """Return the largest errors, the ranks, and the condition number over its formula, by claim id."""
        s, n = self.settings, len(self.settings.seeds)
        mismatch = np.abs(self.uniform_rank - np.minimum(s.few, s.dimension))
        ratio = self.condition / uniform_condition(np.array(s.mean_norms), s.length)
        low, high = (over_runs(n, pick, **{name: ratio}) for name, pick in RATIOS)
        least, most = (
            over_runs(n, pick, **{name: self.kernel_rank})
            for name, pick in (("min_rank", np.min), ("max_rank", np.max))
        )
        rank = Measurement({**least.values, **most.values}, {**least.spread, **most.spread}, n)
        return {
            "SN-ATT-tensor": over_runs(n, np.max, max_error=self.tensor_error),
            "SN-ATT-row": over_runs(n, np.max, max_error=self.row_error),
            "SN-H-gradient": over_runs(n, np.max, max_relative_error=self.gradient_error),
            "SN-H-envelope": over_runs(n, np.max, max_relative_error=self.envelope_error),
            "SN-H-factors": over_runs(n, np.max, max_change=self.factor_change),
            "SN-H-shift": over_runs(n, np.max, max_change=self.shift_change),
            "SN-H-kernel": Measurement({**rank.values, **self.sizes}, rank.spread, n),
            "SN-H-uniform": over_runs(n, np.max, max_rank_mismatch=mismatch),
            "SN-H-condition": Measurement({**low.values, **high.values}, {**low.spread, **high.spread}, n),
        }


RATIOS = (("min_measured_over_formula", np.min), ("max_measured_over_formula", np.max))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ToSelfAttention:
    """Check the identities and count the ranks.

    Args:
        settings: Sizes and seeds.
        device: Checked for being there; everything is computed in float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)
    with runtime.threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _check(settings, seed), clock=clock, workdir=workdir, progress=progress
        )
    return ToSelfAttention(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _check(s: Settings, seed: int) -> dict[str, np.ndarray]:
    rng = stream(seed, "to_self_attention", s.dimension)

    def normal(*shape: int) -> Tensor:
        return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

    tokens = normal(1, s.n_sequences, s.length, s.dimension)
    query, key, mix = (normal(s.dimension, s.dimension) for _ in range(3))
    value, labels = normal(1, s.dimension, s.n_outputs), normal(1, s.n_sequences * s.length, s.n_outputs)
    key_query = (query @ key.T / s.dimension)[None]
    numbers = {
        "tensor_error": _tensor_error(key_query[0], value[0], tokens[0, 0]),
        "row_error": _row_error(key_query[0], value[0], tokens[0, 0]),
        **_gradient_errors(key_query, value, tokens, labels),
        "factor_change": _change(query @ key.T, (query @ mix) @ (key @ torch.linalg.inv(mix).T).T, tokens),
        "shift_change": _shift_change(query @ key.T, tokens),
        "kernel_rank": [_kernel_rank(s, key_query, value, seed, length) for length in s.lengths],
    }
    centred, direction = rng.standard_normal((s.many, s.length, s.dimension)), rng.standard_normal(s.dimension)
    means = np.array(s.mean_norms)[:, None] * direction / np.linalg.norm(direction)
    shifted = [centred + mean for mean in means]
    return {name: np.array(number) for name, number in numbers.items()} | {
        "uniform_rank": np.array([_rank(centred[:n].mean(axis=1)) for n in s.few]),
        "condition": np.array([np.linalg.cond(x.mean(axis=1)) ** 2 for x in shifted]),
        "sharp_condition": np.array([np.linalg.cond(x.reshape(-1, s.dimension)) ** 2 for x in shifted]),
    }


def _tensor_error(key_query: Tensor, value: Tensor, tokens: Tensor) -> float:
    plain = outputs(key_query[None], value[None], tokens[None, None])[0]
    logits = torch.from_numpy(logits_by_tensor_trick(tokens.numpy(), key_query.numpy()))
    return float((torch.softmax(logits, dim=1) @ tokens @ value - plain).abs().max())


def _row_error(key_query: Tensor, value: Tensor, tokens: Tensor) -> float:
    """Every row at once: the tokens are the inputs of one two-layer network."""
    plain = outputs(key_query[None], value[None], tokens[None, None])[0]
    network = Networks.stack("softmax", [row_as_network(tokens.numpy(), key_query.numpy(), value.numpy())])
    rows = predict(network, tokens[None])[0].T / len(tokens)
    return float((rows - plain).abs().max())


def _gradient_errors(key_query: Tensor, value: Tensor, tokens: Tensor, labels: Tensor) -> dict[str, float]:
    def loss(m: Tensor, v: Tensor) -> Tensor:
        return (_plain(m, v, tokens) - labels).square().sum() / (2 * labels.shape[1])

    def solved(m: Tensor) -> Tensor:
        rows = contexts(torch.softmax(tokens @ m[:, None] @ tokens.mT, dim=3), tokens)
        return loss(m, torch.linalg.solve(rows.mT @ rows, rows.mT @ labels))

    leaves = [t.clone().requires_grad_() for t in (key_query, value)]
    automatic = torch.autograd.grad(loss(*leaves), leaves)
    (through,) = torch.autograd.grad(solved(leaves[0]), leaves[0])
    ours, at_best = (loss_and_gradients(key_query, v, tokens, labels) for v in (value, None))
    each = (_distance(a, b) for a, b in zip((ours.key_query, ours.value), automatic, strict=True))
    return {"gradient_error": max(each), "envelope_error": _distance(at_best.key_query, through)}


def _plain(key_query: Tensor, value: Tensor, tokens: Tensor) -> Tensor:
    """The layer as one would write it down, for automatic differentiation."""
    weights = torch.softmax(tokens @ key_query[:, None] @ tokens.mT, dim=3)
    return (weights @ tokens @ value[:, None]).flatten(1, 2)


def _change(one: Tensor, other: Tensor, tokens: Tensor) -> float:
    first, second = (attention_weights(m[None], tokens) for m in (one, other))
    return float((first - second).abs().max())


def _shift_change(key_query: Tensor, tokens: Tensor) -> float:
    with_one, shift = tokens.clone(), torch.zeros_like(key_query)
    with_one[..., 0] = 1
    shift[:, 0] = tokens[0, 0, 0]
    return _change(key_query, key_query + shift, with_one)


def _kernel_rank(s: Settings, key_query: Tensor, value: Tensor, seed: int, length: int) -> int:
    shape = (1, s.n_sequences, length, s.dimension)
    tokens = to_tensor(stream(seed, "kernel", *shape).standard_normal(shape), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda m: _plain(m, value, tokens).flatten(), key_query)
    return _rank(jacobian.flatten(1).numpy())


def _rank(matrix: np.ndarray) -> int:
    singular = np.linalg.svd(matrix, compute_uv=False)
    return int((singular > SINGULAR * singular[0]).sum())


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())
