r"""The data of Figures 2 to 6: a small digit in the centre of an image of noise.

===============  ====================  ==============================================
paper            name here             shape
===============  ====================  ==============================================
$p$              ``scene.n_pixels``    number of inputs, the pixels of the image
$a^*$            ``scene.patch``       ``(n_pixels,)``, 1 where the digit is
$x_i$            ``inputs``            ``(samples, n_pixels)``, row by row
===============  ====================  ==============================================

The paper leaves open where the digit is and what the noise is. Here the digit is in the centre, unless it is told to
wander, and the noise is everywhere around it and nowhere in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int, Shaped

from attnbook.core.rng import stream
from attnbook.datasets import Images

__all__ = ["Noise", "NoisyDigits", "Scene", "draw_background", "draw_noisy_digits", "place", "shrink"]

Noise: TypeAlias = Literal["normal", "uniform"]

# Standard deviation of normal noise; digits have values from 0 to 1.
NOISE_SD = 0.5


@dataclass(frozen=True)
class Scene:
    """What an image looks like.

    Attributes:
        image_size: Height and width of the image, in pixels.
        digit_size: Height and width of the digit.
        noise: What is around the digit: ``normal`` with mean 0 and standard deviation 0.5, or ``uniform`` from 0 to 1.
        wandering: How far the digit may be from the centre, in pixels up, down, left and right, at a random place in
            each image; 0 keeps it in the centre of all.
    """

    image_size: int
    digit_size: int
    noise: Noise = "normal"
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
    """Samples of one seed.

    Attributes:
        train: Training images, row by row.
        train_labels: Which digit is in each.
        test: Test images.
        test_labels: Which digit is in each.
    """

    train: Float[np.ndarray, "train pixels"]
    train_labels: Int[np.ndarray, " train"]
    test: Float[np.ndarray, "test pixels"]
    test_labels: Int[np.ndarray, " test"]


def shrink(images: Shaped[np.ndarray, "samples height width"], size: int) -> Float[np.ndarray, "samples {size} {size}"]:
    """Shrink images to a square by averaging over areas.

    Args:
        images: Grey values from 0 to 255.
        size: Height and width wanted; at most those of the images.

    Returns:
        Grey values from 0 to 1. The mean over all pixels stays what it was.

    Raises:
        ValueError: If ``size`` is not between 1 and the size of the images.

    Example:
        >>> shrink(np.array([[[0, 255], [255, 255]]]), 1).item()
        0.75
    """
    if not 1 <= size <= min(images.shape[1:]):
        raise ValueError(f"size: expected between 1 and {min(images.shape[1:])}, the size of the images, got {size}")
    rows, columns = (_averages(old, size) for old in images.shape[1:])
    return rows @ (images / 255.0) @ columns.T


def draw_background(
    count: int, scene: Scene, *, rng: np.random.Generator
) -> Float[np.ndarray, "{count} {scene.n_pixels}"]:
    """Draw images of noise.

    Args:
        count: Number of images.
        scene: Their size, and the kind of noise.
        rng: Source of randomness.

    Returns:
        The images, row by row.
    """
    shape = (count, scene.n_pixels)
    return rng.random(shape) if scene.noise == "uniform" else NOISE_SD * rng.standard_normal(shape)


def place(
    digits: Float[np.ndarray, "samples size size"],
    background: Float[np.ndarray, "samples pixels"],
    scene: Scene,
    *,
    rng: np.random.Generator | None = None,
) -> Float[np.ndarray, "samples pixels"]:
    """Put each digit into its image of noise.

    Args:
        digits: Digits of the size that the scene asks for, see :func:`shrink`.
        background: Images of noise of the scene, see :func:`draw_background`.
        scene: Where the digit goes.
        rng: Source of the places; only a wandering digit needs it.

    Returns:
        The images, row by row; new arrays.

    Raises:
        ValueError: If digits or images are not of the size that the scene asks for, or ``rng`` is missing.
    """
    if digits.shape[1] != scene.digit_size or background.shape[1] != scene.n_pixels:
        raise ValueError(
            f"digits, background: expected digits of {scene.digit_size} x {scene.digit_size} and images of "
            f"{scene.n_pixels} pixels, got {digits.shape[1:]} and {background.shape[1]}"
        )
    if scene.wandering and rng is None:
        raise ValueError("rng: expected a generator, as a wandering digit is at a random place, got None")
    count, size = len(digits), scene.digit_size
    corners = np.full((count, 2), scene.margin // 2)
    if rng is not None and scene.wandering:
        corners += rng.integers(2 * scene.wandering + 1, size=(count, 2)) - scene.wandering
    rows, columns = (corners[:, axis, None] + np.arange(size) for axis in (0, 1))
    images = background.reshape(count, scene.image_size, scene.image_size).copy()
    images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]] = digits
    return images.reshape(background.shape)


def draw_noisy_digits(images: Images, scene: Scene, *, n_train: int, n_test: int, seed: int) -> NoisyDigits:
    """Draw the training and test samples of a seed: choose digits, shrink them, place them in noise.

    Args:
        images: The digits.
        scene: What an image looks like.
        n_train: Training samples, drawn without replacement.
        n_test: Test samples, drawn likewise.
        seed: Seed of the choice, the noise and the places. The choice does not depend on the scene.

    Returns:
        The samples.

    Raises:
        ValueError: If there are fewer images than asked for.
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
    background = draw_background(count, scene, rng=stream(seed, part, scene.noise, scene.image_size))
    small = shrink(digits[chosen], scene.digit_size)
    return place(small, background, scene, rng=stream(seed, part, "places")), labels[chosen].astype(np.int64)


def _averages(old: int, new: int) -> np.ndarray:
    """The matrix that averages ``old`` cells into ``new`` ones: the share of each new cell that an old one covers."""
    edges = np.arange(new + 1) * old / new
    cells = np.arange(old)
    overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    return np.maximum(overlap, 0.0) * new / old
