"""What the denominator of a softmax network does to its kernel at the start: identities and condition numbers.

The paper has no experiments; this one is the book's. Networks with and without the denominator share their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.at_start import limit_spectrum
from attnbook.softmax_ntk.data import draw_sample, sphere
from attnbook.softmax_ntk.denominator import denominator_scaling, sphere_factor
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, over_runs
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Start, Weights, draw_weights, predict

__all__ = ["Denominator", "Settings", "run"]

# Decimal places of eigenvalues over the largest.
PLACES = 9


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_samples: Number of samples and of inputs.
        n_outputs: Number of outputs where the whole kernel is compared, at least 2.
        width: Number of neurons of the networks whose condition numbers are taken, even.
        exact_widths: Widths at which the identity of finite networks is checked, even.
        lowest_norms: Norms of the inputs are uniform from one of these to 1.
        scales: Values of $\sigma$.
        steps: Steps of training after which invariants are looked at.
        seeds: Seeds of data and weights.
        chunk: Seeds kept together.
    """

    n_samples: int = 16
    n_outputs: int = 2
    width: int = 16384
    exact_widths: tuple[int, ...] = (64, 1024)
    lowest_norms: tuple[float, ...] = (1.0, 0.8, 0.5, 0.2)
    scales: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    steps: int = 50
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        if 0.5 not in self.lowest_norms or not {1.0, 2.0} <= set(self.scales):
            raise ValueError(
                f"lowest_norms, scales: the claims need 0.5, and 1 and 2, got {self.lowest_norms}, {self.scales}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second; the identities hold at any size."""
        return cls(
            n_samples=5, width=256, exact_widths=(16,), lowest_norms=(1.0, 0.5), scales=(1.0, 2.0), steps=5,
            seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(width=131072, seeds=tuple(range(40)), chunk=1)


@dataclass(frozen=True)
class Denominator(Result):
    r"""What was measured; networks in the order softmax, exp, ReLU.

    Attributes:
        scaling_error: Largest relative error of $K_{\exp}=DK_{\rm softmax}D$ at infinite width, ``(seeds,)``.
        sphere_error: The same of $K_{\exp}=e^{\sigma^2}K_{\rm softmax}$ on the sphere, ``(seeds,)``.
        sphere_condition_error: Relative difference of the two condition numbers there, ``(seeds,)``.
        finite_error: Error of $H_{\exp}=\hat DH_{\rm softmax}\hat D$ over the largest entry, for paired networks,
            ``(seeds, exact_widths, scales)``.
        unpaired_error: The same for networks without pairs.
        spectrum: Eigenvalues of the limits over the largest, decreasing,
            ``(seeds, lowest_norms, scales, networks, samples)``.
        finite_spectrum: The same of networks of the given width.
        origin_output: Largest output at the zero input, before and after training, exp and ReLU, ``(seeds, 2)``.
        mean_weight_change: Movement of the mean weight over the mean movement of a weight, without pairs, exp and
            ReLU, ``(seeds, 2)``.
        shift_change: Relative change of the kernel when one vector is added to every neuron, exp and ReLU,
            ``(seeds, 2)``.
    """

    # Rounding errors are compared with a tolerance, and eigenvalues span many orders of magnitude.
    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "softmax_ntk.denominator"
    settings_type: ClassVar[type] = Settings

    scaling_error: Float[np.ndarray, " seeds"]
    sphere_error: Float[np.ndarray, " seeds"]
    sphere_condition_error: Float[np.ndarray, " seeds"]
    finite_error: Float[np.ndarray, "seeds widths scales"]
    unpaired_error: Float[np.ndarray, "seeds widths scales"]
    spectrum: Float[np.ndarray, "seeds norms scales networks samples"]
    finite_spectrum: Float[np.ndarray, "seeds norms scales networks samples"]
    origin_output: Float[np.ndarray, "seeds others"]
    mean_weight_change: Float[np.ndarray, "seeds others"]
    shift_change: Float[np.ndarray, "seeds others"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        s, n = self.settings, len(self.settings.seeds)
        condition = 1 / self.finite_spectrum[:, s.lowest_norms.index(0.5), :, :, -1]
        ratio = condition[..., 1] / condition[..., 0]
        return {
            "SN-KEXP": over_runs(n, np.max, max_relative_error=self.scaling_error),
            "SN-KEXP-sphere": over_runs(
                n, np.max, max_relative_error=self.sphere_error, max_condition_difference=self.sphere_condition_error
            ),
            "SN-KEXP-finite": over_runs(n, np.max, max_paired_error=self.finite_error),
            "SN-KEXP-unpaired": over_runs(n, np.min, min_unpaired_error=self.unpaired_error),
            "SN-COND": over_runs(
                n, np.min, min_exp_over_softmax_sigma1=ratio[:, s.scales.index(1.0)],
                min_exp_over_softmax_sigma2=ratio[:, s.scales.index(2.0)],
            ),
            "SN-INV-others": over_runs(
                n, np.min, min_mean_weight_change=self.mean_weight_change, min_kernel_change=self.shift_change
            ),
            "SN-INV-origin-others": over_runs(n, np.max, max_output=self.origin_output),
        }  # fmt: skip


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Denominator:
    """Compare networks with and without the denominator at the start.

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

    def measure(seed: int) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return {**_limits(settings, seed), **_finite(settings, seed), **_invariants(settings, seed)}

    arrays = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return Denominator(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _limits(s: Settings, seed: int) -> dict[str, np.ndarray]:
    """The kernels at infinite width: identities, then spectra there and at the width of the settings."""
    n, rng = s.n_samples, stream(seed, "limits")
    units = sphere(n, n, rng=rng)
    spread = rng.uniform(size=(n, 1))
    anywhere = 2 * spread * units
    soft, exp = (infinite_width_kernel(name, anywhere) for name in ("softmax", "exp"))
    d = denominator_scaling(anywhere)
    round_soft, round_exp = (infinite_width_kernel(name, units) for name in ("softmax", "exp"))
    conditions = [np.linalg.cond(kernel) for kernel in (round_soft, round_exp)]
    samples = [(low + (1 - low) * spread) * units for low in s.lowest_norms]
    limits = [[[limit_spectrum(a, x, scale=c) for a in ACTIVATIONS] for c in s.scales] for x in samples]
    drawn = draw_weights(s.width, n, 1, rng=stream(seed, "weights", s.width))
    return {
        "scaling_error": np.abs(d[:, None] * soft * d / exp - 1).max(),
        "sphere_error": np.abs(sphere_factor(units) * round_soft / round_exp - 1).max(),
        "sphere_condition_error": np.abs(conditions[0] / conditions[1] - 1),
        "spectrum": np.array(limits).round(PLACES),
        "finite_spectrum": np.array([_spectra(drawn, x, s.scales) for x in samples]).round(PLACES),
    }


def _scaled(activation: Activation, drawn: Weights, scale: float) -> Networks:
    return Networks.stack(activation, [Weights(scale * drawn.first_layer, drawn.signs)])


def _spectra(drawn: Weights, inputs: np.ndarray, scales: tuple[float, ...]) -> list[list[np.ndarray]]:
    """Eigenvalues over the largest, decreasing, for each scale and network; ReLU knows no scale."""
    x = to_tensor(inputs[None], dtype=torch.float64)

    def of(activation: Activation, scale: float) -> np.ndarray:
        values = torch.linalg.eigvalsh(ntk_gram(_scaled(activation, drawn, scale), x)[0]).flip(0)
        return (values / values[0]).numpy()

    relu = of("relu", 1.0)
    return [[of("softmax", scale), of("exp", scale), relu] for scale in scales]


def _finite(s: Settings, seed: int) -> dict[str, np.ndarray]:
    """The identity of finite networks, with pairs and without."""
    sample = draw_sample(s.n_samples, s.n_samples, 1, seed=seed).inputs
    inputs = np.linspace(s.lowest_norms[-1], 1, s.n_samples)[:, None] * sample

    def errors(start: Start) -> np.ndarray:
        def drawn(m: int) -> Weights:
            return draw_weights(m, s.n_samples, s.n_outputs, rng=stream(seed, "identity", m), start=start)

        return np.array([[_identity_error(drawn(m), inputs, scale) for scale in s.scales] for m in s.exact_widths])

    return {"finite_error": errors("paired"), "unpaired_error": errors("independent")}


def _identity_error(drawn: Weights, inputs: np.ndarray, scale: float) -> float:
    r"""Error of $H_{\exp}=\hat DH_{\rm softmax}\hat D$, $\hat D$ the mean exponential over neurons, all blocks."""
    x = to_tensor(inputs[None], dtype=torch.float64)
    soft, exp = (ntk_gram(_scaled(name, drawn, scale), x)[0].numpy() for name in ("softmax", "exp"))
    mean = np.tile(np.exp(scale * inputs @ drawn.first_layer).mean(1), len(drawn.signs))
    return float(np.abs(mean[:, None] * soft * mean - exp).max() / np.abs(exp).max())


def _invariants(s: Settings, seed: int) -> dict[str, np.ndarray]:
    """What of the three invariants of softmax exp and ReLU keep."""
    n, m = s.n_samples, s.exact_widths[0]
    sample, found = draw_sample(n, n, s.n_outputs, seed=seed), []
    x, y = (to_tensor(a[None], dtype=torch.float64) for a in (sample.inputs, sample.labels))
    for name in ACTIVATIONS[1:]:
        paired, free = (
            Networks.stack(name, [draw_weights(m, n, s.n_outputs, rng=stream(seed, "invariants"), start=start)])
            for start in ("paired", "independent")
        )
        trained, moved = (_trained(one, x, y, s.steps) for one in (paired, free))
        change = moved.first_layer - free.first_layer
        shifted = replace(free, first_layer=free.first_layer + x[:, :1].mT)
        before, after = ntk_gram(free, x), ntk_gram(shifted, x)
        origin = max(float(predict(one, torch.zeros_like(x)).abs().max()) for one in (paired, trained))
        mean = float(change.mean(2).norm() / change.norm(dim=1).mean())
        found.append((origin, mean, float((after - before).norm() / before.norm())))
    return dict(zip(("origin_output", "mean_weight_change", "shift_change"), np.array(found).T, strict=True))


def _trained(networks: Networks, x: torch.Tensor, y: torch.Tensor, steps: int) -> Networks:
    eta = 1 / (networks.width * torch.linalg.eigvalsh(ntk_gram(networks, x))[:, -1])
    return gradient_descent(networks, x, y, eta, max_steps=steps).networks
