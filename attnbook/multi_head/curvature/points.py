r"""The networks whose curvature is measured, and what is measured at them.

*Random* points; *trained* ones (a fixed number of steps of gradient descent from there); *lone* ones, where the first
of $H$ heads does the work of a trained single head and the others are zero: the same function for every $H$; and
*equal* ones, trained until the loss is the same for every $H$. And two where bounds come near: zero weights, and tokens
that are all the same (*equal tokens*) or point half each way (*opposite tokens*), up to the sign of the label.

Then what the paper's footnotes allow: another self-bounded loss, and tied decoders $U_h=P(u_h)$ with one vector $u_h$
for all tokens (pooling, $U_h=\mathbb 1u_h^\top$) or for the last token only, where derivatives are those in $u_h$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from attnbook.core import spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import curvature_bounds, derivatives, layer, network
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.experiment_parts import random_networks

if TYPE_CHECKING:
    from attnbook.multi_head.curvature.experiments import Curvature

FORMULAS = ("decoder", "key_query", "mixed", "curvature", "printed key_query")
BOUNDS = ("gradient", "Hessian", "Hessian without dimension")
KINDS = ("random", "lopsided")
Head = tuple[np.ndarray, ...]  # tokens, decoder, key-query matrix
WORST = ("equal tokens", "opposite tokens")
POINTS = ("random", "trained", "lone", "equal", *WORST)
# Pooling is measured by the norm of U_h, or, "plain", by that of u_h as the footnote may be read.
VARIANTS = ("last token", "pooling", "pooling, plain", "squareplus")
# Standard deviation of the weights, by point.
SCALES = {"random": 0.5, "larger weights": 2.0, **dict.fromkeys(WORST, 0.0)}
QUANTITIES = ("gradient", "smoothness", "curvature")
# Whole Hessians with larger blocks than this are not put together: a block of 3000 rows takes 72 MB.
LARGEST_BLOCK = 1000


def worst_tokens(point: str, batch: network.Batch) -> network.Batch:
    """Return tokens of length one with the labels and sizes of a batch, for zero weights."""
    tokens, labels = torch.zeros_like(batch[0]), batch[1]
    signs = torch.ones(tokens.shape[2], dtype=tokens.dtype, device=tokens.device)
    if point == "opposite tokens":
        signs[1::2] = -1
    tokens[..., 0] = labels[..., None] * signs
    return tokens, labels


def draw_points(
    sizes: Curvature, scale: float, n_heads: int, seeds: Sequence[int], batch: network.Batch
) -> dict[str, tuple[Parameters, network.Batch]]:
    """Return the networks of all seeds at each of the points, and the samples there."""

    def start(count: int) -> Parameters:
        rngs = [stream(seed, "random point") for seed in seeds]  # heads of a smaller one are those of a larger one
        return random_networks(rngs, (count, sizes.n_tokens, sizes.dimension), scale=scale, device=batch[0].device)

    def train(start: Parameters) -> Parameters:
        return network.gradient_descent(start, batch, step_size=sizes.step_size, steps=sizes.steps).parameters

    random, single = start(n_heads), train(start(1))
    lone = {name: pad(tensor, (0, 0, 0, 0, 0, n_heads - 1)) for name, tensor in single.items()}
    lone["decoder"] *= math.sqrt(n_heads)
    most = 10 * max(sizes.steps, 100)
    equal = network.descend_to(random, batch, step_size=sizes.step_size, loss=sizes.equal_loss, most_steps=most)
    drawn = {"random": random, "trained": train(random), "lone": lone, "equal": equal}
    zero = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    worst = {name: (zero, worst_tokens(name, batch)) for name in WORST}
    return {name: (parameters, batch) for name, parameters in drawn.items()} | worst


def measure_point(parameters: Parameters, batch: network.Batch) -> dict[str, np.ndarray]:
    """Return what is measured at one point, each ``(members,)``."""
    loss, gradients = network.loss_and_gradient(parameters, batch)
    squares = torch.stack([g.square().flatten(1).sum(1) for g in gradients.values()]).sum(0)
    found = [_eigenvalues(parameters, batch, member) for member in range(len(loss))]
    return {
        **{name: np.array([one[name] for one in found]) for name in found[0]},
        "loss": loss.cpu().numpy(),
        "gradient_norm": squares.sqrt().cpu().numpy(),
        "head_norm": network.largest_head_norm(parameters).cpu().numpy(),
        "token_norm": batch[0].norm(dim=3).amax((1, 2)).clamp(min=1).cpu().numpy(),
        "decoder_norm": parameters["decoder"].square().sum((2, 3)).amax(1).sqrt().cpu().numpy(),
    }


def _eigenvalues(parameters: Parameters, batch: network.Batch, member: int) -> dict[str, float]:
    """Extreme eigenvalues of the whole Hessian, and of the blocks of all heads where these are small."""
    own = {name: tensor[member] for name, tensor in parameters.items()}
    tokens, labels = batch[0][member], batch[1][member]
    product: spectrum.Product
    if own["decoder"][0].numel() + own["key_query"][0].numel() <= LARGEST_BLOCK:
        hessian = derivatives.loss_hessian(own, tokens, labels)
        product, size = hessian.product, hessian.size
        of_heads = -np.linalg.eigvalsh(hessian.blocks)[:, 0]
    else:

        def loss(p: Parameters) -> Tensor:
            stacked = {name: tensor.unsqueeze(0) for name, tensor in p.items()}
            return network.losses(stacked, (tokens.unsqueeze(0), labels.unsqueeze(0)))[0]

        product, size = spectrum.hessian_product(loss, own)
        of_heads = np.array([np.inf])
    smallest, largest = spectrum.extreme_eigenvalues(product, size, dense_below=300, tolerance=1e-3)
    if abs(smallest) < 1e-12 * largest:  # no negative curvature; its rounding error would differ from run to run
        smallest = 0.0
    heads = {"typical_head": float(np.median(of_heads)), "worst_head": float(of_heads.max())}
    return {"smallest": smallest, "largest": largest, **heads}


def squareplus(margins: Tensor) -> Tensor:
    r"""Return $\ell(t)=\frac12(\sqrt{t^2+4}-t)$: convex, $|\ell'|\le\frac12\ell$, $|\ell'|\le1$, $\ell''\le\frac14$."""
    return ((margins.square() + 4).sqrt() - margins) / 2


def rows_of(variant: str, n_tokens: int) -> np.ndarray:
    """Return how the rows of a decoder depend on the vectors that are trained, ``(tokens, vectors)``."""
    free, tied = np.eye(n_tokens), np.ones((n_tokens, 1))
    pooling = {"pooling": tied / math.sqrt(n_tokens), "pooling, plain": tied}
    return {"squareplus": free, "last token": free[:, -1:], **pooling}[variant]


def variant_ratios(variant: str, n_heads: int, point: str, seed: int, batch: network.Batch) -> list[float]:
    """Return gradient, Hessian norm and negative curvature over their bounds, for a batch of one member."""
    tokens, labels = worst_tokens(point, batch) if point in WORST else batch
    n_tokens, dimension = tokens.shape[2:]
    rows = torch.from_numpy(rows_of(variant, n_tokens))
    sizes = (n_heads, rows.shape[1], dimension)
    trained = random_networks([stream(seed, "random point")], sizes, scale=SCALES[point])
    flat = torch.cat([trained["decoder"], trained["key_query"]], dim=2)

    def loss(parameters: Tensor) -> Tensor:
        u, w = parameters.view_as(flat).tensor_split([rows.shape[1]], dim=2)
        margins = labels * layer.outputs({"decoder": rows @ u, "key_query": w}, tokens)
        return (squareplus(margins) if variant == "squareplus" else softplus(-margins)).mean()

    at = flat.flatten()
    value, gradient = float(loss(at)), torch.func.grad(loss)(at)
    eigenvalues = torch.linalg.eigvalsh(torch.func.jacrev(torch.func.grad(loss))(at))
    norms = max(1.0, float(tokens.norm(dim=3).max())), float(network.largest_head_norm(trained))
    given: dict[str, Any] = {"n_tokens": n_tokens, "dimension": dimension, "n_heads": n_heads}
    stated = loss_constants(**given, token_norm=norms[0], largest_head_norm=norms[1])
    return [
        float(gradient.norm()) / (stated.gradient * value),
        float(eigenvalues.abs().max()) / stated.smoothness,
        -float(eigenvalues[0]) * math.sqrt(n_heads) / (stated.curvature * value),
    ]


def two_parts(n_heads: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Return both parts of a small Hessian and the loss: copies of one pair of heads that cancel, so it is log 2."""
    tokens, labels = stream(seed, "two parts").standard_normal((5, 4, 2)), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    head = network.draw_parameters(1, 4, 2, scale=1.0, rng=stream(seed, "pair of heads"))
    copies = {name: torch.from_numpy(array).repeat(n_heads, 1, 1) for name, array in head.items()}
    copies["decoder"][1::2] *= -1
    hessian = derivatives.loss_hessian(copies, torch.from_numpy(tokens), torch.from_numpy(labels))
    bowl = hessian.rows.T * hessian.weights @ hessian.rows
    return bowl, hessian.dense() - bowl, math.log(2)


def formula_errors(n_tokens: int, dimension: int, seed: int, draw: int) -> list[float]:
    """Return relative errors of the formulas of Lemma 1, as the text prints them, at one draw of normal entries."""
    rng = stream(seed, "formulas", draw)
    t, d = n_tokens, dimension
    drawn = [rng.standard_normal(shape) for shape in ((t, d), (t, d), (d, d), t, d, d)]
    x, u, w, a, b, c = (to_tensor(array, dtype=torch.float64) for array in drawn)
    u.requires_grad_(), w.requires_grad_()
    output = (u * ((x @ w @ x.T).softmax(1) @ x)).sum()
    in_u, in_w = torch.autograd.grad(output, (u, w), create_graph=True)
    (mixed,) = torch.autograd.grad(a @ in_u @ b, w, retain_graph=True)
    (curvature,) = torch.autograd.grad(c @ in_w @ b, w)
    with torch.no_grad():
        logits, values, along = x @ w @ x.T, u @ x.T, x @ b
        phi = logits.softmax(1)
        # The text reads v v^T where phi phi^T must stand.
        true, printed = (torch.diag_embed(phi) - p[:, :, None] * p[:, None] for p in (phi, logits))
        bent = along * values - (phi @ along)[:, None] * values - (phi * values).sum(1, keepdim=True) * along

        def summed(weights: Tensor, rows: Tensor, jacobian: Tensor = true) -> Tensor:
            """Sum over queries of weight times x_t r_t^T J_t X."""
            return x.T @ (weights[:, None] * torch.einsum("ts,tsr,rj->tj", rows, jacobian, x))

        one, formulas = torch.ones_like(a), {"decoder": (phi @ x, in_u)}
        formulas["key_query"] = summed(one, values), in_w
        formulas["mixed"] = summed(a, along.expand(t, t)), mixed
        formulas["curvature"] = summed(x @ c, bent), curvature
        formulas["printed key_query"] = summed(one, values, printed), in_w
        return [float((got - right).norm() / right.norm()) for got, right in (formulas[name] for name in FORMULAS)]


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
    hessian = derivatives.head_hessians(head, x, x.new_ones(1))[0]
    return float(gradient), float(torch.linalg.eigvalsh(hessian).abs().max())


def random_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> Head:
    """Draw normal entries, each of the three arrays at a scale between 0.1 and 10."""
    scales, rows = 10.0 ** rng.uniform(-1, 1, 3), (n_tokens, n_tokens, dimension)
    return tuple(scale * rng.standard_normal((n, dimension)) for scale, n in zip(scales, rows, strict=True))


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
