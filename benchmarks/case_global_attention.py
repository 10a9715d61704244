"""Self-attention on padded reviews: on the real words only, and as it is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from side_by_side import Case
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.padding_free_attention import attend

N_POSITIONS, DIMENSION = 2142, 100
# Root mean squares of the lengths of the 25,000 training reviews of IMDB in 32 equal slices, sorted by length.
LENGTHS = (853, 605, 498, 432, 383, 346, 316, 291, 269, 249, 234, 219, 206, 195, 185, 176,
           168, 161, 154, 148, 142, 137, 132, 128, 123, 119, 113, 105, 93, 78, 62, 44)  # fmt: skip


def cases() -> list[Case]:
    """Return the comparison in float64, which shows that the numbers are the same, and in float32, as in training."""
    return [_case(torch.float64, 1e-10), _case(torch.float32, 1e-3)]


def _case(dtype: torch.dtype, tolerance: float) -> Case:
    name = str(dtype).removeprefix("torch.")
    what = (
        f"Forward and backward through self-attention for 32 reviews padded to {N_POSITIONS} words of {DIMENSION} "
        f"entries, as long as real ones, in {name}: gradients of the key-query and the value matrix."
    )
    padded, fused = "padded, autograd", "padded, scaled_dot_product_attention"
    variants = {"real words only (ours)": _ours, padded: _padded, fused: _fused}
    problem = _Problem(dtype)
    return Case(
        f"Padding-free self-attention, {name}",
        what,
        {label: _bound(run, problem) for label, run in variants.items()},
        tolerance=tolerance,
        aim={padded: 20.0, fused: 20.0},
    )


def _bound(run: Callable[[_Problem], np.ndarray], problem: _Problem) -> Callable[[], np.ndarray]:
    return lambda: run(problem)


class _Problem:
    """Word vectors, matrices, and a gradient that arrives: one per position for words, one for all of padding."""

    def __init__(self, dtype: torch.dtype) -> None:
        rng = stream(0, "padding-free benchmark")

        def draw(*shape: int) -> torch.Tensor:
            return to_tensor(rng.standard_normal(shape), dtype=dtype)

        self.tokens = [draw(length, DIMENSION) * 0.1 for length in LENGTHS]
        self.at_words = [draw(length, DIMENSION) for length in LENGTHS]
        self.at_padding = draw(len(LENGTHS), DIMENSION)
        self.key_query, self.value = draw(DIMENSION, DIMENSION) * 0.1, draw(DIMENSION, DIMENSION) * 0.1


def _ours(p: _Problem) -> np.ndarray:
    key_query, value = leaves = [matrix.clone().requires_grad_() for matrix in (p.key_query, p.value)]
    for one, tokens in enumerate(p.tokens):
        words, padding = attend(tokens[None], key_query, value, N_POSITIONS)
        empty = N_POSITIONS - len(tokens)
        ((words[0] * p.at_words[one]).sum() + (padding[0] * p.at_padding[one] * empty).sum()).backward()
    return torch.stack([leaf.grad for leaf in leaves]).numpy()


def _padded(p: _Problem) -> np.ndarray:
    return _by_autograd(p, lambda x, m, v: torch.softmax(x @ m @ x.mT, -1) @ (x @ v.mT))


def _fused(p: _Problem) -> np.ndarray:
    attention = torch.nn.functional.scaled_dot_product_attention
    return _by_autograd(p, lambda x, m, v: attention((x @ m)[None], x[None], (x @ v.mT)[None], scale=1.0)[0])


def _by_autograd(p: _Problem, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> np.ndarray:
    """Pad each review, and let autograd find the way back; four reviews at a time fit in memory."""
    leaves = [matrix.clone().requires_grad_() for matrix in (p.key_query, p.value)]
    for first in range(0, len(LENGTHS), 4):
        part = range(first, first + 4)
        tokens = p.tokens[0].new_zeros(4, N_POSITIONS, DIMENSION)
        gradient = p.at_padding[first : first + 4].unsqueeze(1).repeat(1, N_POSITIONS, 1)
        for row, review in enumerate(part):
            tokens[row, : LENGTHS[review]], gradient[row, : LENGTHS[review]] = p.tokens[review], p.at_words[review]
        (attend(tokens, *leaves) * gradient).sum().backward()
    return torch.stack([leaf.grad for leaf in leaves]).numpy()
