r"""Margins of the paper's target after the first phase, as sums of a decoder part and an attention part.

The start is $m$, the row of every decoder per unit of its random sign; $m=\frac\zeta4u_\star$ is its signal alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import oracle, starts
from attnbook.multi_head.data import Drawn, Mixture, draw, draw_patterns
from attnbook.multi_head.tangent_kernel import tangent_features

SIZES = (  # at which eq. (7) is compared without noise; in the last one every token carries the label
    Mixture(10, 6, 4, pattern_norm=2.0, relevant_fraction=0.4),
    Mixture(10, 12, 4, pattern_norm=1.0, relevant_fraction=0.1),
    Mixture(7, 11, 3, pattern_norm=1.5, relevant_fraction=3 / 7),
    Mixture(5, 13, 2, pattern_norm=3.0, relevant_fraction=1.0),
)
BINS, RANGE = 70, (-0.5, 1.5)  # of the histograms of margins over eq. (7) without noise
SEARCHED, SEARCH_STEPS = 40, 40  # samples and steps of the search for the worst noise


class Truth(NamedTuple):
    """Patterns and target of some seeds, one member each."""

    label: Tensor  # mu_+ and mu_-, (members, 2, dimension)
    other: Tensor  # nu_1 to nu_M, (members, patterns, dimension)
    signal: Tensor  # u_star = mu_+ - mu_-, (members, dimension)
    decoder: Tensor  # of the target, norm one, (members, tokens, dimension)
    key_query: Tensor  # of the target, norm one, (members, dimension, dimension)


def truth(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> Truth:
    """Return patterns and target of some seeds."""
    rows = []
    for seed in seeds:
        patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
        u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
        norms = np.linalg.norm(u), np.linalg.norm(w)
        rows.append((patterns.label, patterns.other, oracle.value_direction(patterns), u / norms[0], w / norms[1]))
    return Truth(*(to_tensor(np.stack(part), device=where, dtype=torch.float64) for part in zip(*rows, strict=True)))


def parts(batch: Drawn, true: Truth) -> tuple[Tensor, Tensor]:
    r"""Return the decoder part of the margins, and the vectors whose product with $m$ is the attention part."""
    tokens, labels, _ = batch
    return starts.decoder_part(tokens, labels, true.decoder), starts.key_query_pull(tokens, labels, true.key_query)


def at(decoder: Tensor, pull: Tensor, m: Tensor) -> Tensor:
    """Return the margin of every sample at one direction of each member."""
    return decoder + torch.einsum("bnd,bd->bn", pull, m)


def cell(mixture: Mixture, sizes: tuple[int, int], seeds: Sequence[int], where: torch.device) -> dict[str, np.ndarray]:
    """Measure smallest margins at zero and at the signal, of the target and of the best one, and the worst noise."""
    n_samples, n_best = sizes
    true, batch = truth(mixture, seeds, where), draw(mixture, n_samples, seeds, device=where)
    m = mixture.relevant_fraction / 4 * true.signal
    zero, pull = parts(batch, true)
    after = at(zero, pull, m)
    few = Drawn(*(part[:, :n_best] for part in batch))
    unit = oracle.first_phase_margin(quiet(mixture))
    # one sequence of seeds shows one histogram: that of its first seed
    counts = [
        np.histogram((part[0] / unit).clamp(-0.5 + 1e-9, 1.5 - 1e-9).cpu(), BINS, RANGE)[0] for part in (zero, after)
    ]
    found = {"zero_margin": zero.amin(1), "margin": after.amin(1)}
    best = {"best_zero": best_margin(few, 0 * m), "best": best_margin(few, m)}
    return {name: value.cpu().numpy() for name, value in found.items()} | best | {"counts": np.stack(counts)}


def quiet(mixture: Mixture) -> Mixture:
    """Return the mixture without noise along patterns."""
    return replace(mixture, label_noise=0.0, other_noise=0.0)


def best_margin(batch: Drawn, m: Tensor) -> np.ndarray:
    r"""Return the largest margin of any target of norm $\sqrt2$ at one head with rows $m$; NaN where none is."""
    members, _, n_tokens, dimension = batch.tokens.shape
    start = {
        "decoder": m[:, None, None, :].expand(-1, 1, n_tokens, -1),
        "key_query": m.new_zeros((members, 1, dimension, dimension)),
    }
    features, found = tangent_features(start, batch.tokens), []
    for gram, own in zip((features @ features.mT).cpu().numpy(), batch.labels.cpu().numpy(), strict=True):
        try:
            found.append(2**0.5 * kernel_margin(gram, own).margin)
        except NotSeparableError:
            found.append(np.nan)
    return np.array(found)


def worst_margin(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> np.ndarray:
    """Search for the smallest margin at the signal that the bounds on the noise allow."""
    # From samples with noise at its bounds, along the sign of the gradient and within the bounds. What is found is a
    # margin that some allowed sample has, so the worst one is no larger. Noise off the patterns changes no margin.
    calm = replace(quiet(mixture), free_noise=0.0, dimension=mixture.n_patterns + 2)
    clean, true = draw(calm, SEARCHED, seeds, device=where), truth(calm, seeds, where)
    patterns = torch.cat([true.label, true.other], dim=1) / mixture.pattern_norm**2
    sizes = [mixture.label_noise] * 2 + [mixture.other_noise / mixture.n_patterns] * mixture.n_patterns
    bounds = clean.tokens.new_tensor(sizes) * ~clean.relevant.unsqueeze(3)

    def margins(noise: Tensor) -> Tensor:
        noisy = clean._replace(tokens=clean.tokens + torch.einsum("bntp,bpd->bntd", noise, patterns))
        return at(*parts(noisy, true), mixture.relevant_fraction / 4 * true.signal)

    signs = [stream(seed, "worst noise").choice([1.0, -1.0], bounds.shape[1:]) for seed in seeds]
    noise = bounds * bounds.new_tensor(np.stack(signs))
    smallest = margins(noise).amin(1)
    for step in range(SEARCH_STEPS):
        slope = torch.func.grad(lambda here: margins(here).sum())(noise)
        noise = (noise - 2 * (1 - step / SEARCH_STEPS) * bounds * slope.sign()).clamp(-bounds, bounds)
        smallest = torch.minimum(smallest, margins(noise).amin(1))
    return np.asarray(smallest.cpu())


def noise_free_errors(mixture: Mixture, seeds: Sequence[int], where: torch.device) -> dict[str, np.ndarray]:
    r"""Hold whole networks against eq. (7) without noise, under both readings of $\alpha_h$; relative errors."""
    # signs with zeta/4; uniform on [-1, 1] with zeta/2, in expectation: on each half the margin is linear in alpha
    batch, true = draw(mixture, 20, seeds, device=where), truth(mixture, seeds, where)
    stated, row = oracle.first_phase_margin(mixture), mixture.relevant_fraction * true.signal
    found = {
        "signs": network_margins(batch, true, row / 4, stream(seeds[0], "noise-free signs").choice([1.0, -1.0], 5))
    }
    nodes, weights = np.polynomial.legendre.leggauss(4)
    found["uniform"] = sum(
        weight * network_margins(batch, true, row / 2, np.array([node]))
        for half in (-0.5, 0.5)
        for node, weight in zip(half + nodes / 2, weights / 4, strict=True)
    )
    return {name: (part / stated - 1).abs().amax(1).cpu().numpy() for name, part in found.items()}


def network_margins(batch: Drawn, true: Truth, row: Tensor, alpha: np.ndarray) -> Tensor:
    r"""Return $y_i\langle\nabla\tilde\Phi(X_i),\tilde\theta_\star\rangle$ of a network with these $\alpha_h$."""
    n_heads, n_tokens, dimension = len(alpha), *batch.tokens.shape[2:]
    scale = to_tensor(alpha, device=row.device, dtype=torch.float64)[None, :, None, None]
    start = {
        "decoder": scale * row[:, None, None].expand(-1, n_heads, n_tokens, -1),
        "key_query": row.new_zeros((len(row), n_heads, dimension, dimension)),
    }
    features = tangent_features(start, batch.tokens)
    heads = [torch.cat([true.decoder.flatten(1), np.sign(a) * true.key_query.flatten(1)], dim=1) for a in alpha]
    return batch.labels * torch.einsum("bnf,bf->bn", features, torch.cat(heads, dim=1) / n_heads**0.5)


def violations(mixture: Mixture, n_samples: int, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Measure the largest excess over a bound of Assumption 3, and errors of patterns and of relevant tokens."""
    true, drawn = truth(mixture, seeds, torch.device("cpu")), draw(mixture, n_samples, seeds, purpose="data checks")
    everything = torch.cat([true.label, true.other], dim=1)
    gram = everything @ everything.mT - mixture.pattern_norm**2 * torch.eye(everything.shape[1], dtype=torch.float64)
    found: dict[str, list[float]] = {"violation": [], "relevant_error": []}
    for tokens, labels, relevant, label, other in zip(*drawn, true.label, true.other, strict=True):
        expected = torch.where(labels[:, None] > 0, label[0], label[1])[:, None]
        found["relevant_error"].append(float((tokens - expected).abs()[relevant].max()))
        others = tokens[~relevant]
        noise = others - other[(others @ other.T).argmax(1)]  # the pattern of a token is the one it is nearest to
        excess = (
            (noise @ label.T).abs().max() - mixture.label_noise,
            (noise @ other.T).abs().max() - mixture.other_noise / mixture.n_patterns,
            noise.norm(dim=1).max() - mixture.noise_norm,
            tokens.norm(dim=2).max() - mixture.token_norm,
        )
        found["violation"].append(float(max(excess)))
    return {"gram_error": gram.abs().amax((1, 2)).numpy()} | {name: np.array(v) for name, v in found.items()}
