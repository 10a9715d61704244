"""Images cut into patches, the tokens of a vision transformer: CIFAR-10, and small digits that need no files.

From each data set the first training images are split into training and validation images; the test images are the
first ones, too. So the subset of CIFAR-10 that ``ATTNBOOK_DATA`` may hold and the whole of it give the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from attnbook import datasets
from attnbook.core.rng import stream

__all__ = ["ImageSource", "PatchedImages", "cut", "load_patches", "mirror_image"]

ImageSource: TypeAlias = Literal["cifar10", "digits"]
"""CIFAR-10, or scikit-learn's 8 x 8 digits."""


@dataclass(frozen=True)
class PatchedImages:
    """Images of ten classes as rows of patches, brightness standardised by the training images.

    Attributes:
        train: Training images, ``(train, patches, pixels)``; a patch lists its rows, in colour three numbers a pixel.
        train_labels: Their classes, 0 to 9.
        validation: Images to choose step sizes on, likewise.
        validation_labels: Their classes.
        test: Test images, likewise.
        test_labels: Their classes.
        patch: Side of a patch in pixels.
        classes: Names of the classes.
        source: Where the images come from; show it beside every result.
    """

    train: Float[np.ndarray, "train patches pixels"]
    train_labels: Int[np.ndarray, " train"]
    validation: Float[np.ndarray, "validation patches pixels"]
    validation_labels: Int[np.ndarray, " validation"]
    test: Float[np.ndarray, "test patches pixels"]
    test_labels: Int[np.ndarray, " test"]
    patch: int
    classes: tuple[str, ...]
    source: str


def load_patches(
    source: ImageSource, *, patch: int, n_train: int, n_validation: int, n_test: int, seed: int = 0
) -> PatchedImages:
    """Load images and cut them into patches.

    Args:
        source: ``cifar10`` (32 x 32 pixels in colour) or ``digits`` (8 x 8 grey pixels, always there).
        patch: Side of a patch in pixels; divides the side of the image.
        n_train: Training images to keep.
        n_validation: Images set apart from the training images, at random.
        n_test: Test images to keep, the first ones.
        seed: Which images are set apart; default 0.

    Returns:
        The images. Brightness is standardised per colour channel with mean and deviation of the training images.

    Raises:
        DataError: If CIFAR-10 is not on this machine; the message says how to get it.
        ValueError: If there are too few images, or the patch does not fit.
    """
    found = _cifar() if source == "cifar10" else _digits()
    wanted = n_train + n_validation
    if min(n_train, n_validation, n_test) < 1 or wanted > len(found.train) or n_test > len(found.test):
        raise ValueError(
            f"n_train, n_validation, n_test: expected at least 1 each, and of {source} at most {len(found.train)} for "
            f"the first two together and {len(found.test)} test images; got {n_train}, {n_validation} and {n_test}"
        )
    order = stream(seed, "validation images").permutation(wanted)
    kept, apart = order[:n_train], order[n_train:]
    train = _in_colour(found.train[kept])
    mean, deviation = (np.float32(of(train, axis=(0, 1, 2), dtype=np.float64)) for of in (np.mean, np.std))

    def patches(images: np.ndarray) -> np.ndarray:
        return cut((_in_colour(images) - mean) / deviation, patch)

    return PatchedImages(
        patches(found.train[kept]),
        found.train_labels[kept].astype(np.int64),
        patches(found.train[apart]),
        found.train_labels[apart].astype(np.int64),
        patches(found.test[:n_test]),
        found.test_labels[:n_test].astype(np.int64),
        patch,
        found.classes,
        found.source,
    )


def cut(
    images: Float[np.ndarray, "images side side channels"], patch: int
) -> Float[np.ndarray, "images patches pixels"]:
    """Cut images into square patches, row by row.

    Args:
        images: Square images with their channels last.
        patch: Side of a patch in pixels; divides the side of the image.

    Returns:
        The patches, each as one row of ``patch * patch * channels`` numbers.

    Raises:
        ValueError: If the patch does not fit.

    Example:
        >>> cut(np.arange(16.0).reshape(1, 4, 4, 1), 2)[0, 1]
        array([2., 3., 6., 7.])
    """
    count, side, _, channels = images.shape
    if patch < 1 or side % patch:
        raise ValueError(f"patch: expected a divisor of {side}, the side of the images, got {patch}")
    across = side // patch
    split = images.reshape(count, across, patch, across, patch, channels)
    return split.swapaxes(2, 3).reshape(count, across * across, patch * patch * channels)


def mirror_image(
    patches: Float[np.ndarray, "images patches pixels"], patch: int
) -> Float[np.ndarray, "images patches pixels"]:
    """Return the images with left and right exchanged.

    Args:
        patches: Images cut by :func:`cut`.
        patch: Side of a patch in pixels.

    Returns:
        Their mirror images, cut likewise.

    Raises:
        ValueError: If the patches do not tile a square, or have another side.

    Example:
        >>> mirror_image(cut(np.arange(16.0).reshape(1, 4, 4, 1), 2), 2)[0, 0]
        array([3., 2., 7., 6.])
    """
    count, n_patches, pixels = patches.shape
    across = round(n_patches**0.5)
    if across**2 != n_patches or pixels % patch**2:
        raise ValueError(
            f"patches: got {n_patches} of {pixels} numbers, which are no {patch} x {patch} tiles of a square"
        )
    tiles = patches.reshape(count, across, across, patch, patch, pixels // patch**2)
    return tiles[:, :, ::-1, :, ::-1].reshape(patches.shape)


def _in_colour(images: np.ndarray) -> np.ndarray:
    """Brightness from 0 to 1, with an axis of channels, in grey images as well."""
    return (images if images.ndim == 4 else images[..., None]) / np.float32(255)


def _cifar() -> datasets.Images:
    try:
        return datasets.cifar10(download=False, stand_in=False)
    except datasets.DataError as error:
        raise datasets.DataError(f"{error}; to get CIFAR-10: `attnbook data fetch cifar10`") from error


def _digits() -> datasets.Images:
    """Scikit-learn's digits at their own size: one of the nine pixels that stand for each, without the margin."""
    found = datasets.digits()
    small = found.train[:, 2:-2:3, 2:-2:3], found.test[:, 2:-2:3, 2:-2:3]
    source = "scikit-learn's 8x8 digits"
    return datasets.Images(small[0], found.train_labels, small[1], found.test_labels, found.classes, source)
