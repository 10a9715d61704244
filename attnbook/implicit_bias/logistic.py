r"""Logistic regression on separable data. A sample is $z=yx$, input times label: right is $w^\top z>0$.

Gradient descent on the mean of $\log(1+e^{-w^\top z})$ goes like $w(t)=\hat w\log t+\tilde w+o(1)$ on almost all
separable data (Soudry et al., 2018; recalled). Both vectors are known beforehand: :func:`expansion`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.max_margin import max_margin
from attnbook.core.rng import stream

__all__ = ["descend_growing", "draw_samples", "expansion", "value_and_gradient"]

MARGIN, SPREAD = 0.5, 1.5  # distance of the nearest samples from the best line; deviation of samples along it
SUPPORTS = 1e-9  # a sample whose multiplier is larger than this share of the largest


def draw_samples(n_samples: int, clearance: float, seed: int) -> Float[np.ndarray, "samples 2"]:
    """Draw samples in the plane, and around the line through the origin, of random direction, with the largest margin.

    Args:
        n_samples: At least 2; two support the line, one on each side along it.
        clearance: At least 1: the others are at least that many margins from the line, and an exponential draw more.
        seed: Of the draws.

    Returns:
        Products of inputs and labels.

    Raises:
        ValueError: If a number is outside its range.
    """
    if n_samples < 2 or not clearance >= 1:
        raise ValueError(f"n_samples, clearance: expected at least 2 and 1, got {n_samples} and {clearance}")
    rng = stream(seed, "separable samples")
    across, along = clearance * MARGIN + rng.exponential(size=n_samples), SPREAD * rng.standard_normal(n_samples)
    across[:2], along[:2] = MARGIN, np.abs(along[:2]) * [1, -1]
    angle = 2 * np.pi * rng.random()
    return np.stack([across, along], axis=1) @ [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]


def value_and_gradient(
    parameters: dict[str, Tensor], samples: Float[Tensor, "problems samples axes"]
) -> tuple[Float[Tensor, " problems"], dict[str, Tensor]]:
    r"""Return the mean of $\log(1+e^{-w^\top z})$ of each problem and its gradient, in closed form.

    Args:
        parameters: Weights of each problem as ``w``, ``(problems, axes)``.
        samples: Those of each problem.

    Returns:
        Losses, and gradients as the parameters are; what :func:`attnbook.train.train` takes.
    """
    margins = torch.einsum("psa,pa->ps", samples, parameters["w"])
    pull = torch.sigmoid(-margins) / samples.shape[1]
    return torch.nn.functional.softplus(-margins).mean(1), {"w": -torch.einsum("ps,psa->pa", pull, samples)}


def expansion(
    samples: Float[np.ndarray, "problems samples axes"], step_size: float
) -> tuple[Float[np.ndarray, "problems axes"], Float[np.ndarray, "problems axes"]]:
    r"""Return $\hat w$ and $\tilde w$ of $w(t)=\hat w\log t+\tilde w+o(1)$, without training.

    $\hat w=\sum_i\alpha_iz_i$ are the shortest weights with $\hat w^\top z_i\ge1$ for all samples. With $n$ samples,
    $\frac\eta n e^{-\tilde w^\top z_i}=\alpha_i$ for each that supports them, those with $\alpha_i>0$.

    Args:
        samples: Those of each problem; so many must support the solution as there are axes, in different directions.
        step_size: Of gradient descent, positive.

    Returns:
        The direction of the largest margin, and the fixed part; one of each for every problem.

    Raises:
        ValueError: If the step size is not positive, or the supporting samples of a problem do not determine it.
        InfeasibleError: If nothing separates a problem (a ``ValueError``).

    Example:
        >>> best, fixed = expansion(np.array([[[1.0, 0.0], [0.0, 2.0]]]), step_size=0.5)
        >>> best.round(3).tolist(), fixed.round(3).tolist()
        ([[1.0, 0.5]], [[-1.386, 0.0]])
    """
    _check_step_size(step_size)
    found = max_margin(samples, p=2.0)
    fixed = np.empty_like(found.weights)
    for problem, (z, alpha) in enumerate(zip(samples, found.multipliers, strict=True)):
        of = np.flatnonzero(alpha > SUPPORTS * alpha.max())
        if len(of) != z.shape[1] or np.linalg.matrix_rank(z[of]) < len(of):
            said = f"in different directions, got {len(of)} in problem {problem}"
            raise ValueError(f"samples: expected {z.shape[1]} that support the largest margin, {said}")
        fixed[problem] = np.linalg.solve(z[of], np.log(step_size / (len(z) * alpha[of])))
    return found.weights, fixed


def descend_growing(
    samples: Float[np.ndarray, "problems samples axes"], step_size: float, times: Sequence[float], pace: float
) -> tuple[Float[np.ndarray, "times problems axes"], Float[np.ndarray, "times problems"]]:
    r"""Follow gradient descent from zero to numbers of steps that nobody can wait for, with steps that grow.

    While the loss $L$ is large a step is one of gradient descent. Later one step is as long as $h/(\eta L)$ of them
    ($h$ is ``pace``). The loss falls like $1/t$, so each step adds about the same to $\log t$.

    Args:
        samples: Those of each problem, separable.
        step_size: Of a single step, positive.
        times: Numbers of steps at which weights are kept, increasing, positive, at most 1e100.
        pace: Smaller is closer to gradient descent; positive.

    Returns:
        Weights at these times or just after, and the times themselves, of each problem.

    Raises:
        ValueError: If a number is outside its range.
    """
    _check_step_size(step_size)
    if not 0 < pace < float("inf"):
        raise ValueError(f"pace: expected a positive number, got {pace}")
    if not len(times) or list(times) != sorted(set(times)) or not 0 < times[0] <= times[-1] <= 1e100:
        raise ValueError(f"times: expected increasing numbers of steps, positive, at most 1e100, got {list(times)}")
    z = torch.as_tensor(samples, dtype=torch.float64, device="cpu")
    w, now = z.new_zeros(z.shape[0], z.shape[2]), z.new_zeros(z.shape[0])
    weights, reached = z.new_zeros(len(times), *w.shape), z.new_zeros(len(times), len(now))
    for number, time in enumerate(times):
        while (at := now < time).any():
            losses, gradients = value_and_gradient({"w": w}, z)
            single = torch.where(at, (pace / (step_size * losses)).clamp(min=1), 0.0)
            w, now = w - step_size * single[:, None] * gradients["w"], now + single
        weights[number], reached[number] = w, now
    return weights.numpy(), reached.numpy()


def _check_step_size(step_size: float) -> None:
    if not 0 < step_size < float("inf"):
        raise ValueError(f"step_size: expected a positive number, got {step_size}")
