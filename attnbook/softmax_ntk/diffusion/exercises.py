"""Checks of the exercises on score estimation. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream


def denoiser(answer: Callable[..., Any]) -> str | None:
    """Check the true label of a one-dimensional mixture."""
    rng = stream(1, "exercise", "SN-13")
    x, means, width, alpha = rng.uniform(-2, 2, 7), np.array([-0.7, 0.2, 0.9]), 0.3, 0.8
    beta, offsets = 1 - alpha**2, x[:, None] - alpha * means

    def shares(v: float) -> np.ndarray:
        weights = np.exp(-(offsets**2) / (2 * v))
        return weights / weights.sum(axis=1, keepdims=True)

    def with_variance(v: float) -> np.ndarray:
        return (shares(v) * (means + alpha * width**2 / v * offsets)).sum(axis=1)

    v = alpha**2 * width**2 + beta
    likely = {
        "only the means of the modes are averaged; within its mode the point keeps some of its offset": shares(v)
        @ means,
        "the variance of a noisy mode is alpha^2 s^2 + beta: the width of the mode is missing": with_variance(beta),
        "this is the score, not the denoised point": -(shares(v) * offsets).sum(axis=1) / v,
        "this is x / alpha, which takes the noise for signal": x / alpha,
    }
    got = answer(x.copy(), alpha, means.copy(), width)
    return verdict(got, with_variance(v), likely, "one denoised point per point")


def reverse_step(answer: Callable[..., Any]) -> str | None:
    """Check one step of the backward process."""
    rng = stream(1, "exercise", "SN-15")
    y, score, noise = rng.standard_normal((3, 5))
    g, h = 3.0, 0.02  # rate and length

    def after(drift: np.ndarray, spread: float = np.sqrt(g * h)) -> np.ndarray:
        return y + h * drift + spread * noise

    drift = g * (y / 2 + score)
    likely = {
        "the score enters with the whole rate g: half of it belongs to the equation without noise": after(
            g * (y + score) / 2
        ),
        "the sign of y is that of the forward process; backward, particles move outwards": after(g * (score - y / 2)),
        "the noise grows like the square root of the time step": after(drift, g * h),
        "the noise is missing": after(drift, 0.0),
        "the rate is missing under the square root": after(drift, np.sqrt(h)),
        "the score is missing": after(g * y / 2),
    }
    return verdict(answer(y.copy(), score.copy(), noise.copy(), g, h), after(drift), likely, "one particle per one")


CHECKS = {"SN-13": denoiser, "SN-15": reverse_step}
