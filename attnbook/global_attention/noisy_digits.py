"""Digits in noise: the image data of Section 4, a small digit in the middle of a large noise image.

The paper takes MNIST. Runs whose outputs must be the same on every machine use scikit-learn's bundled digits, larger
ones MNIST; every result says which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnbook.core.rng import stream
from attnbook.datasets import digits, mnist

__all__ = ["DigitImages", "NoisyDigits", "digit_images", "draw_noisy_digits", "place_in_noise"]

MARGIN, POOL = 2, 3


@dataclass(frozen=True)
class DigitImages:
    """Small digits, values in [0, 1].

    Attributes:
        train: Training images.
        train_labels: Their digits.
        test: Test images.
        test_labels: Their digits.
        source: Where they come from, in words.
    """

    train: Float[np.ndarray, "train side side"]
    train_labels: Int[np.ndarray, " train"]
    test: Float[np.ndarray, "test side side"]
    test_labels: Int[np.ndarray, " test"]
    source: str


@dataclass(frozen=True)
class NoisyDigits:
    """Samples of one seed.

    Attributes:
        train: Training images, flattened.
        train_labels: One-hot labels.
        test: Test images, flattened.
        test_labels: One-hot labels.
        mask: 1 where the digit is, else 0.
    """

    train: Float[np.ndarray, "train pixels"]
    train_labels: Float[np.ndarray, "train classes"]
    test: Float[np.ndarray, "test pixels"]
    test_labels: Float[np.ndarray, "test classes"]
    mask: Float[np.ndarray, " pixels"]


def digit_images(source: str) -> DigitImages:
    """Return digits of 8 x 8 pixels, from images of 28 x 28: the margin of 2 is cut, 3 x 3 pixels are averaged.

    Args:
        source: ``digits``, scikit-learn's 1,437 and 360, which are bundled; or ``mnist``, 60,000 and 10,000, which must
            be at hand or be downloaded.

    Returns:
        The images.

    Raises:
        ValueError: If the source is unknown.
        DataError: If the images cannot be had.
    """
    if source == "digits":
        images = digits()
    elif source == "mnist":
        images = mnist(stand_in=False)
    else:
        raise ValueError(f"source: expected digits or mnist, got {source!r}")
    labels = [array.astype(np.int64) for array in (images.train_labels, images.test_labels)]
    return DigitImages(_shrink(images.train), labels[0], _shrink(images.test), labels[1], images.source)


def place_in_noise(
    images: Float[np.ndarray, "samples patch patch"], side: int, noise: float, *, rng: np.random.Generator
) -> Float[np.ndarray, "samples pixels"]:
    """Put each image into the middle of a larger one of Gaussian noise.

    Args:
        images: The patches.
        side: Side of the large images, at least that of the patches; default of the paper's Section 4.3: 24.
        noise: Standard deviation of every pixel outside the patch.
        rng: Source of randomness.

    Returns:
        The large images, flattened row by row.

    Raises:
        ValueError: If the patch does not fit or the noise is negative.

    Example:
        >>> place_in_noise(np.ones((1, 1, 1)), 3, 0.0, rng=np.random.default_rng(0)).sum()
        np.float64(1.0)
    """
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise: expected a number of at least 0, got {noise}")
    middle = _middle(side, images.shape[1])
    large = noise * rng.standard_normal((len(images), side, side))
    large[:, middle, middle] = images
    return large.reshape(len(images), -1)


def draw_noisy_digits(
    images: DigitImages, *, n_train: int, n_test: int, side: int, noise: float, seed: int
) -> NoisyDigits:
    """Draw training and test samples of a seed.

    Args:
        images: The digits.
        n_train: Training samples, drawn without replacement; at most as many as there are.
        n_test: Test samples; the first of the test images.
        side: Side of the large images.
        noise: Standard deviation of the noise around the digits.
        seed: Seed of the choice and the noise.

    Returns:
        The samples.

    Raises:
        ValueError: If there are fewer images than asked for.
    """
    for name, wanted, there in (("n_train", n_train, len(images.train)), ("n_test", n_test, len(images.test))):
        if not 1 <= wanted <= there:
            raise ValueError(f"{name}: expected between 1 and {there}, got {wanted}")
    chosen = stream(seed, "training images").permutation(len(images.train))[:n_train]
    classes = np.eye(10)
    patch = images.train.shape[1]
    mask = np.zeros((side, side))
    mask[_middle(side, patch), _middle(side, patch)] = 1.0
    return NoisyDigits(
        train=place_in_noise(images.train[chosen], side, noise, rng=stream(seed, "training noise")),
        train_labels=classes[images.train_labels[chosen]],
        test=place_in_noise(images.test[:n_test], side, noise, rng=stream(seed, "test noise")),
        test_labels=classes[images.test_labels[:n_test]],
        mask=mask.ravel(),
    )


def _middle(side: int, patch: int) -> slice:
    if side < patch:
        raise ValueError(f"side: expected at least that of the patch, {patch}, got {side}")
    return slice((side - patch) // 2, (side - patch) // 2 + patch)


def _shrink(images: np.ndarray) -> np.ndarray:
    cut = images[:, MARGIN:-MARGIN, MARGIN:-MARGIN] / 255
    count, side = len(cut), cut.shape[1] // POOL
    return cut.reshape(count, side, POOL, side, POOL).mean(axis=(2, 4))
