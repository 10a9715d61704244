"""Checks of the exercises on score estimation. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream

__all__ = ["CHECKS"]


def denoiser(answer: Callable[..., Any]) -> str | None:
    """Check the true label of a one-dimensional mixture."""
    rng = stream(1, "exercise", "SN-13")
    x, means, width, alpha = rng.uniform(-2, 2, 7), np.array([-0.7, 0.2, 0.9]), 0.3, 0.8
    beta = 1 - alpha**2
    got = np.asarray(answer(x.copy(), alpha, means.copy(), width), dtype=float)
    if got.shape != x.shape:
        return f"one denoised point per point is wanted, shape {x.shape}, got {got.shape}"
    variance = alpha**2 * width**2 + beta

    def with_variance(v: float) -> np.ndarray:
        exponents = -((x[:, None] - alpha * means) ** 2) / (2 * v)
        weights = np.exp(exponents)
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights * (means + alpha * width**2 / v * (x[:, None] - alpha * means))).sum(axis=1)

    right, centres = with_variance(variance), x[:, None] - alpha * means
    if np.allclose(got, right):
        return None
    weights = np.exp(-(centres**2) / (2 * variance))
    weights /= weights.sum(axis=1, keepdims=True)
    likely = {
        "only the means of the modes are averaged; within its mode the point keeps some of its offset": weights @ means,
        "the variance of a noisy mode is alpha^2 s^2 + beta: the width of the mode is missing": with_variance(beta),
        "this is the score, not the denoised point": -(weights * centres).sum(axis=1) / variance,
        "this is x / alpha, which takes the noise for signal": x / alpha,
    }
    return likely_mistake(got, right, likely)


def reverse_step(answer: Callable[..., Any]) -> str | None:
    """Check one step of the backward process."""
    rng = stream(1, "exercise", "SN-15")
    y, score, noise = rng.standard_normal((3, 5))
    rate, length = 3.0, 0.02
    got = np.asarray(answer(y.copy(), score.copy(), noise.copy(), rate, length), dtype=float)
    if got.shape != y.shape:
        return f"one particle per particle is wanted, shape {y.shape}, got {got.shape}"

    def after(drift: np.ndarray, spread: float = np.sqrt(rate * length)) -> np.ndarray:
        return y + length * drift + spread * noise

    right = after(rate * (y / 2 + score))
    if np.allclose(got, right):
        return None
    likely = {
        "the score enters with the whole rate g: half of it belongs to the equation without noise": after(
            rate * (y + score) / 2
        ),
        "the sign of y is that of the forward process; backward, particles move outwards": after(
            rate * (score - y / 2)
        ),
        "the noise grows like the square root of the time step": after(rate * (y / 2 + score), rate * length),
        "the noise is missing": after(rate * (y / 2 + score), 0.0),
        "the rate is missing under the square root": after(rate * (y / 2 + score), np.sqrt(length)),
        "the score is missing": after(rate * y / 2),
    }
    return likely_mistake(got, right, likely)


CHECKS = {"SN-13": denoiser, "SN-15": reverse_step}
