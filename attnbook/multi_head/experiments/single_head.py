r"""Lemma 1 and Proposition 1: derivatives of one head, and bounds on them, at random and at chosen points.

The formulas of Lemma 1 are compared with automatic differentiation. The bounds of Proposition 1 are compared with exact
norms at random draws, and at *lopsided* draws made to come near the bound: tokens close to $\pm Re$ for one direction
$e$, decoders of all sizes along $e$, and the attention for which the larger term of the bound is attained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import ensemble, runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import curvature_bounds, derivatives, network

__all__ = ["BOUNDS", "FORMULAS", "KINDS", "Settings", "SingleHead", "run"]

FORMULAS = ("decoder", "key_query", "printed_key_query", "mixed", "curvature", "all_heads")
BOUNDS = ("gradient", "hessian", "dimension_free_hessian")
KINDS = ("random", "lopsided")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_tokens: Tokens of a sample; even, so that half of them can point one way.
        formula_dimension: Dimension of a token where formulas are checked.
        n_heads: Heads of the network whose closed-form gradient is checked.
        formula_draws: Draws per seed for the formulas.
        dimensions: Dimensions of a token where bounds are checked, increasing.
        bound_draws: Draws per seed, dimension and kind for the bounds.
        seeds: Seeds.
        chunk: Seeds in one part of a resumable run.
    """

    n_tokens: int = 6
    formula_dimension: int = 5
    n_heads: int = 3
    formula_draws: int = 20
    dimensions: tuple[int, ...] = (2, 4, 8)
    bound_draws: int = 60
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.n_tokens < 2 or self.n_tokens % 2:
            raise ValueError(f"n_tokens: expected an even number of at least 2, got {self.n_tokens}")
        if not self.dimensions or list(self.dimensions) != sorted(set(self.dimensions)) or self.dimensions[0] < 1:
            raise ValueError(f"dimensions: expected increasing numbers of at least 1, got {self.dimensions}")
        for name in ("formula_dimension", "n_heads", "formula_draws", "bound_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(formula_draws=2, dimensions=(2, 8), bound_draws=3, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return larger tokens and more of them; the paper's own sizes are not in the text available to us."""
        return cls(n_tokens=10, formula_dimension=50, n_heads=16, dimensions=(2, 4, 8, 16, 32))


@dataclass(frozen=True)
class SingleHead(Result):
    r"""Errors of formulas and measured-to-stated ratios of bounds.

    Attributes:
        errors: Relative error $\|\text{formula}-\text{automatic}\|/\|\text{automatic}\|$, ``(seeds, draws, formulas)``
            with the formulas of :data:`FORMULAS`.
        ratios: Measured norm divided by its bound, ``(seeds, dimensions, kinds, draws, bounds)`` with the kinds of
            :data:`KINDS` and the bounds of :data:`BOUNDS`.
        decoder_share: Share of the dimension-free bound that is its term in the decoder, ``(seeds, dimensions, kinds,
            draws)``.
    """

    experiment: ClassVar[str] = "multi_head.single_head"
    settings_type: ClassVar[type] = Settings

    errors: Float[np.ndarray, "seeds draws formulas"]
    ratios: Float[np.ndarray, "seeds dimensions kinds bound_draws bounds"]
    decoder_share: Float[np.ndarray, "seeds dimensions kinds bound_draws"]

    def of(self, bound: str, kind: str | None = None) -> Float[np.ndarray, "seeds dimensions some"]:
        """Return the ratios of one bound, of one kind of draw or of all."""
        kept = self.ratios[..., BOUNDS.index(bound)]
        kept = kept if kind is None else kept[:, :, [KINDS.index(kind)]]
        return kept.reshape(*kept.shape[:2], -1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Lemma 1 and Proposition 1, by claim id."""
        lemma = {
            "MH-L1.1": "decoder",
            "MH-L1.1-key-query": "key_query",
            "MH-L1.3": "mixed",
            "MH-L1.4": "curvature",
            "MH-L1.5": "all_heads",
        }
        error = {name: self.errors[..., FORMULAS.index(name)] for name in FORMULAS}
        measured = {claim: _largest(largest_relative_error=error[name]) for claim, name in lemma.items()}
        measured["MH-L1.2"] = _merge(
            _largest(relative_error_corrected=error["key_query"]),
            _smallest(relative_error_printed=error["printed_key_query"]),
        )
        measured |= {
            claim: _largest(largest_ratio=self.of(bound))
            for claim, bound in zip(("MH-P1.1", "MH-P1.2", "MH-P1.3"), BOUNDS, strict=True)
        }
        gain = self.of("dimension_free_hessian") / self.of("hessian")
        measured["MH-P1.3-gain"] = _smallest(smallest_gain=gain)
        lopsided = KINDS.index("lopsided")
        ratios, shares = self.ratios[:, :, lopsided, :, -1], self.decoder_share[:, :, lopsided]
        measured["MH-P1.3-attained"] = _largest(
            largest_ratio_small_decoder=np.where(shares < 0.05, ratios, 0),
            largest_ratio_large_decoder=np.where(shares > 0.95, ratios, 0),
        )
        if {2, 8} <= set(self.settings.dimensions):
            at = {d: self.of("hessian", "random")[:, self.settings.dimensions.index(d)] for d in (2, 8)}
            measured["MH-P1.2-slack"] = _largest(**{f"largest_ratio_dimension_{d}": at[d] for d in (2, 8)})
        return measured


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> SingleHead:
    """Check the formulas of Lemma 1 and the bounds of Proposition 1.

    Args:
        settings: Sizes and seeds.
        device: Checked, but nothing is trained: all of it is float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)

    with threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _measure_seed(settings, seed), clock=clock, workdir=workdir, progress=progress
        )
    return SingleHead(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _measure_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    pairs = [[_bounds(settings, seed, d, kind) for kind in KINDS] for d in settings.dimensions]
    return {
        "errors": np.array([_formula_errors(settings, seed, i) for i in range(settings.formula_draws)]),
        "ratios": np.array([[ratios for ratios, _ in kinds] for kinds in pairs]),
        "decoder_share": np.array([[shares for _, shares in kinds] for kinds in pairs]),
    }


def _formula_errors(settings: Settings, seed: int, draw: int) -> list[float]:
    """Relative errors of :data:`FORMULAS` at one draw with standard normal entries."""
    rng = stream(seed, "formulas", draw)
    t, d = settings.n_tokens, settings.formula_dimension
    tokens, decoder, key_query = (rng.standard_normal(shape) for shape in ((t, d), (t, d), (d, d)))
    a, b, c = rng.standard_normal(t), rng.standard_normal(d), rng.standard_normal(d)
    x, u, w = (to_tensor(array, dtype=torch.float64) for array in (tokens, decoder, key_query))
    u.requires_grad_(), w.requires_grad_()
    output = (u * ((x @ w @ x.T).softmax(1) @ x)).sum()
    in_u, in_w = torch.autograd.grad(output, (u, w), create_graph=True)
    a_, b_, c_ = (to_tensor(vector, dtype=torch.float64) for vector in (a, b, c))
    (mixed,) = torch.autograd.grad(a_ @ in_u @ b_, w, retain_graph=True)
    (curvature,) = torch.autograd.grad(c_ @ in_w @ b_, w)
    printed = derivatives.key_query_gradient(tokens, decoder, key_query, jacobian=derivatives.printed_softmax_jacobian)
    return [
        _relative_error(derivatives.decoder_gradient(tokens, key_query), in_u),
        _relative_error(derivatives.key_query_gradient(tokens, decoder, key_query), in_w),
        _relative_error(printed, in_w),
        _relative_error(derivatives.mixed_curvature(tokens, key_query, a, b), mixed),
        _relative_error(derivatives.curvature_in_key_query(tokens, decoder, key_query, b, c), curvature),
        _all_heads_error(settings, seed, draw),
    ]


def _all_heads_error(settings: Settings, seed: int, draw: int) -> float:
    """Relative error of the gradient of the loss of a whole network, all heads and samples at once."""
    rng = stream(seed, "all heads", draw)
    t, d = settings.n_tokens, settings.formula_dimension
    drawn = network.draw_parameters(settings.n_heads, t, d, scale=1.0, rng=rng)
    parameters = {name: to_tensor(array[None], dtype=torch.float64) for name, array in drawn.items()}
    batch = (
        to_tensor(rng.standard_normal((1, 7, t, d)), dtype=torch.float64),
        to_tensor(rng.choice([-1.0, 1.0], (1, 7)), dtype=torch.float64),
    )
    automatic = ensemble.autograd(network.losses)(parameters, batch)[1]
    closed = network.loss_and_gradient(parameters, batch)[1]
    one, other = (torch.cat([g[name].flatten() for name in drawn]) for g in (closed, automatic))
    return _relative_error(one.numpy(), other)


def _bounds(settings: Settings, seed: int, dimension: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Ratios ``(draws, bounds)`` and shares of the decoder's term ``(draws,)``."""
    draw = {"random": _random_head, "lopsided": _lopsided_head}[kind]
    heads = [draw(settings.n_tokens, dimension, stream(seed, kind, dimension, i)) for i in range(settings.bound_draws)]
    ratios, shares = [], []
    for tokens, decoder, key_query in heads:
        x = to_tensor(tokens, dtype=torch.float64).unsqueeze(0)
        head = {
            "decoder": to_tensor(decoder, dtype=torch.float64).unsqueeze(0),
            "key_query": to_tensor(key_query, dtype=torch.float64).unsqueeze(0),
        }
        gradient = float(derivatives.head_gradients(head, x).norm())
        matrix = derivatives.head_hessians(head, x, torch.ones(1, dtype=torch.float64))[0]
        curvature = float(torch.linalg.eigvalsh(matrix).abs().max())
        sharp = curvature_bounds.dimension_free_hessian_bound(tokens, decoder)
        ratios.append(
            (
                gradient / curvature_bounds.gradient_bound(tokens, decoder),
                curvature / curvature_bounds.hessian_bound(tokens, decoder),
                curvature / sharp,
            )
        )
        shares.append(1 - curvature_bounds.dimension_free_hessian_bound(tokens, np.zeros_like(decoder)) / sharp)
    return np.array(ratios), np.array(shares)


Head = tuple[np.ndarray, np.ndarray, np.ndarray]


def _random_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> Head:
    """Normal entries, each of the three arrays at a scale between 0.1 and 10."""
    tokens, decoder, key_query = 10.0 ** rng.uniform(-1, 1, 3)
    return (
        tokens * rng.standard_normal((n_tokens, dimension)),
        decoder * rng.standard_normal((n_tokens, dimension)),
        key_query * rng.standard_normal((dimension, dimension)),
    )


def _lopsided_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> Head:
    """Tokens near plus or minus one direction, half each way, and a decoder of any size along it."""
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


def _relative_error(got: np.ndarray, expected: torch.Tensor) -> float:
    reference = expected.detach().numpy()
    return float(np.linalg.norm(got - reference) / np.linalg.norm(reference))


def _largest(**samples: np.ndarray) -> Measurement:
    return _extreme(np.max, samples)


def _smallest(**samples: np.ndarray) -> Measurement:
    return _extreme(np.min, samples)


def _extreme(of: Callable[..., np.ndarray], samples: dict[str, np.ndarray]) -> Measurement:
    """The extreme over all seeds and draws, with the range over seeds of each seed's extreme."""
    per_seed = {name: of(array.reshape(len(array), -1), axis=1) for name, array in samples.items()}
    values = {name: float(of(array)) for name, array in per_seed.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in per_seed.items()}
    return Measurement(values, spread, len(next(iter(samples.values()))))


def _merge(one: Measurement, other: Measurement) -> Measurement:
    return Measurement({**one.values, **other.values}, {**one.spread, **other.spread}, one.n_seeds)
