r"""One head: the formulas of Lemma 1 beside automatic differentiation, exact norms beside the bounds of Proposition 1.

*Lopsided* draws are made to come near the bound: tokens close to $\pm e$ for one direction $e$, decoders of all sizes
along $e$, and the attention for which the larger term of the bound is attained.
"""

from __future__ import annotations

import numpy as np
import torch

from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import curvature_bounds, derivatives

FORMULAS = ("decoder", "key_query", "mixed", "curvature", "printed key_query")
BOUNDS = ("gradient", "Hessian", "Hessian without dimension")
KINDS = ("random", "lopsided")
Head = tuple[np.ndarray, np.ndarray, np.ndarray]


def formula_errors(n_tokens: int, dimension: int, seed: int, draw: int) -> list[float]:
    """Return relative errors of the formulas of Lemma 1 at one draw with standard normal entries."""
    rng = stream(seed, "formulas", draw)
    t, d = n_tokens, dimension
    tokens, decoder, key_query = (rng.standard_normal(shape) for shape in ((t, d), (t, d), (d, d)))
    a, b, c = rng.standard_normal(t), rng.standard_normal(d), rng.standard_normal(d)
    x, u, w, a_, b_, c_ = (to_tensor(array, dtype=torch.float64) for array in (tokens, decoder, key_query, a, b, c))
    u.requires_grad_(), w.requires_grad_()
    output = (u * ((x @ w @ x.T).softmax(1) @ x)).sum()
    in_u, in_w = torch.autograd.grad(output, (u, w), create_graph=True)
    (mixed,) = torch.autograd.grad(a_ @ in_u @ b_, w, retain_graph=True)
    (curvature,) = torch.autograd.grad(c_ @ in_w @ b_, w)
    printed = derivatives.key_query_gradient(tokens, decoder, key_query, jacobian=derivatives.printed_softmax_jacobian)
    pairs = [
        (derivatives.decoder_gradient(tokens, key_query), in_u),
        (derivatives.key_query_gradient(tokens, decoder, key_query), in_w),
        (derivatives.mixed_curvature(tokens, key_query, a, b), mixed),
        (derivatives.curvature_in_key_query(tokens, decoder, key_query, b, c), curvature),
        (printed, in_w),
    ]
    return [_relative_error(formula, automatic.detach().numpy()) for formula, automatic in pairs]


def bound_ratios(kind: str, n_tokens: int, dimension: int, seed: int, draw: int) -> list[float]:
    """Return measured norms over their bounds at one draw; at last the decoder's share of the bound without d."""
    rng = stream(seed, kind, dimension, draw)
    head = {"random": random_head, "lopsided": lopsided_head}[kind](n_tokens, dimension, rng)
    gradient, hessian = exact_norms(*head)
    tokens, decoder = head[:2]
    sharp = curvature_bounds.dimension_free_hessian_bound(tokens, decoder)
    return [
        gradient / curvature_bounds.gradient_bound(tokens, decoder),
        hessian / curvature_bounds.hessian_bound(tokens, decoder),
        hessian / sharp,
        1 - curvature_bounds.dimension_free_hessian_bound(tokens, np.zeros_like(decoder)) / sharp,
    ]


def exact_norms(tokens: np.ndarray, decoder: np.ndarray, key_query: np.ndarray) -> tuple[float, float]:
    """Return the norms of gradient and Hessian of one head."""
    x, u, w = (to_tensor(array, dtype=torch.float64).unsqueeze(0) for array in (tokens, decoder, key_query))
    head = {"decoder": u, "key_query": w}
    gradient = derivatives.head_gradients(head, x).norm()
    hessian = derivatives.head_hessians(head, x, torch.ones(1, dtype=torch.float64))[0]
    return float(gradient), float(torch.linalg.eigvalsh(hessian).abs().max())


def random_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> Head:
    """Draw normal entries, each of the three arrays at a scale between 0.1 and 10."""
    tokens, decoder, key_query = 10.0 ** rng.uniform(-1, 1, 3)
    return (
        tokens * rng.standard_normal((n_tokens, dimension)),
        decoder * rng.standard_normal((n_tokens, dimension)),
        key_query * rng.standard_normal((dimension, dimension)),
    )


def lopsided_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> Head:
    """Draw tokens near plus or minus one direction, half each way, and a decoder of any size along it."""
    # A small decoder: uniform attention, which maximises the variance of the tokens. A large one: attention mostly to
    # tokens of the own sign, with the share of the others at which the third cumulant is largest, and values that are
    # positive there.
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    away, off, size = 10.0 ** rng.uniform([-4, -4, -3], [0, 0, 3])
    signs = np.ones(n_tokens)
    signs[n_tokens // 2 :] = -1
    others = (1 - 1 / np.sqrt(3)) / 2
    preference = np.log(1 / others - 1) / 2 if size > 1 else 0.0
    spread = away * rng.standard_normal((n_tokens, dimension)) / np.sqrt(dimension)
    return (
        signs[:, None] * direction + spread,
        -size * signs[:, None] * direction,
        preference * np.outer(direction, direction) + off * rng.standard_normal((dimension, dimension)) / dimension,
    )


def _relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
