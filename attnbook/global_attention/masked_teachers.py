r"""The data of Section 5.1 and Table 1: a teacher that looks at a few of its inputs.

The paper's $p$ is ``n_inputs``, its $k$ or $s_0$ is ``n_relevant``, $a^*$ is ``mask``, $w^{(1)*}$ is ``hidden`` and
$w^{(2)*}$ is ``decoder``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream
from attnbook.global_attention.batches import check_sizes, check_weights

__all__ = ["Setup", "Teacher"]


@dataclass(frozen=True)
class Teacher:
    r"""The function that made the labels, $y = G^*(x \odot a^*)$ with a two-layer ReLU network $G^*$."""

    mask: Float[np.ndarray, " inputs"]  #: 1 for the inputs that matter, else 0, ``(n_inputs,)``
    hidden: Float[np.ndarray, "width inputs"]  #: First-layer weights, ``(width, n_inputs)``
    #: Second-layer weights, ``(outputs, width)``, scaled so that the labels have variance 1 on average over outputs
    #: when the inputs are standard normal
    decoder: Float[np.ndarray, "outputs width"]

    def __call__(self, inputs: Float[np.ndarray, "samples inputs"]) -> Float[np.ndarray, "samples outputs"]:
        """Return the clean labels of these inputs."""
        return np.maximum((inputs * self.mask) @ self.hidden.T, 0.0) @ self.decoder.T


@dataclass(frozen=True)
class Setup:
    """Sizes of teacher and network, and the noise on the labels."""

    n_inputs: int  #: Number of inputs
    outputs: int  #: Labels per sample
    teacher_width: int  #: Hidden units of the teacher
    width: int  #: Hidden units of the networks
    noise: float  #: Standard deviation of the noise on training labels (the clean labels have 1)
    n_test: int  #: Held-out samples, with clean labels

    def __post_init__(self) -> None:
        check_sizes(self, "n_inputs", "outputs", "teacher_width", "width", "n_test")
        check_weights(self, "noise")

    def teacher(self, seed: int, n_relevant: int) -> Teacher:
        r"""Return the teacher of a seed, with random relevant inputs.

        The paper leaves $G^*$ open. Here $w^{(1)*} \sim N(0, 1/k)$, $w^{(2)*} \sim N(0, 1/\text{width})$, no biases,
        and the decoder is divided by the standard deviation of the labels (known in closed form), so that a mean
        squared error of 1 means "no better than the mean".

        Args:
            seed: What it is drawn from.
            n_relevant: Number $k$ of inputs that matter, between 1 and ``n_inputs``.

        Returns:
            The teacher.

        Raises:
            ValueError: If ``n_relevant`` is outside its range.

        Example:
            >>> int(Setup(5, 1, 3, 3, noise=0.0, n_test=1).teacher(0, 2).mask.sum())
            2
        """
        if not 1 <= n_relevant <= self.n_inputs:
            raise ValueError(f"n_relevant: expected between 1 and n_inputs = {self.n_inputs}, got {n_relevant}")
        rng, width = stream(seed, "teacher", n_relevant), self.teacher_width
        mask = np.zeros(self.n_inputs)
        mask[rng.choice(self.n_inputs, n_relevant, replace=False)] = 1.0
        hidden = rng.standard_normal((width, self.n_inputs)) / np.sqrt(n_relevant)
        decoder = rng.standard_normal((self.outputs, width)) / np.sqrt(width)
        visible = hidden * mask
        variance = np.einsum("ow,wv,ov->o", decoder, _relu_covariance(visible @ visible.T), decoder).mean()
        return Teacher(mask, hidden, decoder / np.sqrt(variance))


def _relu_covariance(covariance: Float[np.ndarray, "units units"]) -> Float[np.ndarray, "units units"]:
    r"""Return the covariance of $\max(u, 0)$ for a centred Gaussian vector $u$.

    With standard deviations $\sigma_i$ and correlation $\cos\theta_{ij}$, the mean product is
    $\sigma_i\sigma_j(\sin\theta + (\pi-\theta)\cos\theta)/2\pi$ (the arc-cosine kernel of order one) and the means are
    $\sigma_i/\sqrt{2\pi}$.
    """
    sd = np.sqrt(np.diag(covariance))
    scale = np.outer(sd, sd)
    cosine = np.clip(covariance / scale, -1.0, 1.0)
    angle = np.arccos(cosine)
    return scale * (np.sin(angle) + (np.pi - angle) * cosine - 1.0) / (2 * np.pi)
