r"""The data of Figures 2 to 6: a small digit in the centre of an image of noise.

The paper's $p$ is ``Scene.n_pixels``, its $a^*$ is ``Scene.patch``. It leaves open where the digit is and what the
noise is. Here the digit is in the centre, unless it is told to wander, and the noise is everywhere around it and
nowhere in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int, Shaped

from attnbook.core.rng import stream
from attnbook.data import Images

__all__ = ["Noise", "NoisyDigits", "Scene", "draw_noisy_digits"]

Noise: TypeAlias = Literal["normal", "uniform"]

NOISE_SD = 0.5  # standard deviation of normal noise; digits have values from 0 to 1


@dataclass(frozen=True)
class Scene:
    """What an image looks like."""

    image_size: int  #: Height and width of the image, in pixels
    digit_size: int  #: Height and width of the digit
    #: Surroundings of the digit, ``normal`` with mean 0 and standard deviation 0.5, or ``uniform`` from 0 to 1
    noise: Noise = "normal"
    #: How far the digit may be from the centre, in pixels up, down, left and right, at a random place in each image; 0
    #: keeps it in the centre of all
    wandering: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.digit_size <= self.image_size:
            raise ValueError(
                f"digit_size: expected between 1 and image_size = {self.image_size}, got {self.digit_size}"
            )
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise: expected one of {', '.join(get_args(Noise))}, got {self.noise!r}")
        if isinstance(self.wandering, bool) or not 0 <= self.wandering <= self.margin // 2:
            raise ValueError(f"wandering: expected pixels between 0 and {self.margin // 2}, got {self.wandering!r}")

    @property
    def n_pixels(self) -> int:
        """Number of inputs."""
        return self.image_size**2

    @property
    def patch(self) -> Float[np.ndarray, " pixels"]:
        """The mask that keeps the pixels where a digit can be."""
        mask = np.zeros((self.image_size, self.image_size))
        start, side = self.margin // 2 - self.wandering, self.digit_size + 2 * self.wandering
        mask[start : start + side, start : start + side] = 1.0
        return mask.ravel()

    @property
    def margin(self) -> int:
        """Rows, and columns, that the digit leaves free."""
        return self.image_size - self.digit_size


@dataclass(frozen=True)
class NoisyDigits:
    """Samples of one seed."""

    train: Float[np.ndarray, "train pixels"]  #: Training images, row by row
    train_labels: Int[np.ndarray, " train"]  #: Which digit is in each
    test: Float[np.ndarray, "test pixels"]  #: Test images
    test_labels: Int[np.ndarray, " test"]  #: Which digit is in each


def draw_noisy_digits(images: Images, scene: Scene, *, n_train: int, n_test: int, seed: int) -> NoisyDigits:
    """Return the training and test samples of a seed: digits that are chosen, shrunk and placed in noise.

    Args:
        images: The digits.
        scene: What an image looks like.
        n_train: Training samples, drawn without replacement.
        n_test: Test samples, drawn likewise.
        seed: Seed of the choice, the noise and the places. The choice does not depend on the scene.

    Raises:
        ValueError: If there are fewer images than asked for, or they are smaller than the digit wanted.
    """
    for name, wanted, there in (("n_train", n_train, len(images.train)), ("n_test", n_test, len(images.test))):
        if not 1 <= wanted <= there:
            raise ValueError(f"{name}: expected between 1 and {there}, the images of the data set, got {wanted}")
    train = _draw("train", images.train, images.train_labels, scene, n_train, seed)
    return NoisyDigits(*train, *_draw("test", images.test, images.test_labels, scene, n_test, seed))


def _draw(
    part: str, digits: np.ndarray, labels: np.ndarray, scene: Scene, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    chosen = stream(seed, part, "images").permutation(len(digits))[:count]
    rng, shape = stream(seed, part, scene.noise, scene.image_size), (count, scene.image_size, scene.image_size)
    noise = rng.random(shape) if scene.noise == "uniform" else NOISE_SD * rng.standard_normal(shape)
    small = _shrink(digits[chosen], scene.digit_size)
    return _place(small, noise, scene, stream(seed, part, "places")), labels[chosen].astype(np.int64)


def _shrink(
    images: Shaped[np.ndarray, "samples height width"], size: int
) -> Float[np.ndarray, "samples {size} {size}"]:
    """Shrink grey values from 0 to 255 to a smaller square of values from 0 to 1, by averaging over areas."""
    if size > min(images.shape[1:]):
        raise ValueError(f"digit_size: expected at most {min(images.shape[1:])}, the size of the images, got {size}")
    rows, columns = (_averages(old, size) for old in images.shape[1:])
    return rows @ (images / 255.0) @ columns.T


def _averages(old: int, new: int) -> np.ndarray:
    """The matrix that averages ``old`` cells into ``new`` ones: the share of each new cell that an old one covers."""
    edges = np.arange(new + 1) * old / new
    cells = np.arange(old)
    overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    return np.maximum(overlap, 0.0) * new / old


def _place(
    digits: Float[np.ndarray, "samples size size"],
    noise: Float[np.ndarray, "samples side side"],
    scene: Scene,
    rng: np.random.Generator,
) -> Float[np.ndarray, "samples pixels"]:
    """Put each digit into its image of noise, which is written over; the images, row by row."""
    corners = np.full((len(digits), 2), scene.margin // 2)
    if scene.wandering:
        corners += rng.integers(2 * scene.wandering + 1, size=corners.shape) - scene.wandering
    rows, columns = (corners[:, axis, None] + np.arange(scene.digit_size) for axis in (0, 1))
    noise[np.arange(len(digits))[:, None, None], rows[:, :, None], columns[:, None, :]] = digits
    return noise.reshape(len(noise), -1)
