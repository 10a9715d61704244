"""Images and their patches, the tokens of a vision transformer: CIFAR-10, and small digits that need no files.

From each data set the first training images are split at random into training, validation and further test images; the
test images are the first ones. So the subset of CIFAR-10 that ``ATTNBOOK_DATA`` may hold and the whole of it give the
same images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook import datasets
from attnbook.core.rng import stream
from attnbook.mirror_descent.transformer import Inputs

__all__ = ["ImageSource", "Pictures", "batches", "cut", "load_images", "parts"]

ImageSource: TypeAlias = Literal["cifar10", "digits"]
"""CIFAR-10, or scikit-learn's 8 x 8 digits."""


@dataclass(frozen=True)
class Pictures:
    """Images of ten classes, brightness standardised by the training images.

    Attributes:
        train: Training images, ``(train, side, side, channels)``.
        train_labels: Their classes, 0 to 9.
        validation: Images to choose step sizes on, likewise.
        validation_labels: Their classes.
        test: Test images, likewise.
        test_labels: Their classes.
        classes: Names of the classes.
        source: Where the images come from; show it beside every result.
    """

    train: Float[np.ndarray, "train side side channels"]
    train_labels: Int[np.ndarray, " train"]
    validation: Float[np.ndarray, "validation side side channels"]
    validation_labels: Int[np.ndarray, " validation"]
    test: Float[np.ndarray, "test side side channels"]
    test_labels: Int[np.ndarray, " test"]
    classes: tuple[str, ...]
    source: str


@lru_cache(maxsize=1)
def load_images(source: ImageSource, *, n_train: int, n_validation: int, n_apart: int, n_test: int) -> Pictures:
    """Load images.

    Args:
        source: ``cifar10`` (32 x 32 pixels in colour) or ``digits`` (8 x 8 grey pixels, always there).
        n_train: Training images to keep.
        n_validation: Images set apart from the training images, at random.
        n_apart: Further ones set apart, which join the test images.
        n_test: Test images of the data set to keep, the first ones.

    Returns:
        The images. Brightness is standardised per colour channel with mean and deviation of the training images.

    Raises:
        DataError: If CIFAR-10 is not on this machine; the message says how to get it.
        ValueError: If there are too few images.
    """
    found = _cifar() if source == "cifar10" else _digits()
    wanted = n_train + n_validation + n_apart
    if min(n_train, n_validation, n_test) < 1 or wanted > len(found.train) or n_test > len(found.test):
        raise ValueError(
            f"n_train, n_validation, n_apart, n_test: expected at least 1, and of {source} at most {len(found.train)} "
            f"for the first three together and {len(found.test)} for the last; got {n_train}, {n_validation}, "
            f"{n_apart} and {n_test}"
        )
    order = stream(0, "validation images").permutation(wanted)
    kept, judged, apart = np.split(order, [n_train, n_train + n_validation])
    train = _in_colour(found.train[kept])
    mean, deviation = (np.float32(of(train, axis=(0, 1, 2), dtype=np.float64)) for of in (np.mean, np.std))

    def standardised(images: np.ndarray) -> np.ndarray:
        return (_in_colour(images) - mean) / deviation

    return Pictures(
        standardised(found.train[kept]),
        found.train_labels[kept].astype(np.int64),
        standardised(found.train[judged]),
        found.train_labels[judged].astype(np.int64),
        standardised(np.concatenate([found.test[:n_test], found.train[apart]])),
        np.concatenate([found.test_labels[:n_test], found.train_labels[apart]]).astype(np.int64),
        found.classes,
        found.source,
    )


def cut(images: Float[Tensor, "*batch side side channels"], patch: int) -> Float[Tensor, "*batch patches pixels"]:
    """Cut images into square patches, row by row.

    Args:
        images: Square images with their channels last.
        patch: Side of a patch in pixels; divides the side of the image.

    Returns:
        The patches, each as one row of ``patch * patch * channels`` numbers.

    Raises:
        ValueError: If the patch does not fit.

    Example:
        >>> cut(torch.arange(16.0).view(1, 4, 4, 1), 2)[0, 1]
        tensor([2., 3., 6., 7.])
    """
    *batch, side, _, channels = images.shape
    if patch < 1 or side % patch:
        raise ValueError(f"patch: expected a divisor of {side}, the side of the images, got {patch}")
    across = side // patch
    split = images.reshape(*batch, across, patch, across, patch, channels)
    return split.transpose(-3, -4).reshape(*batch, across * across, patch * patch * channels)


def batches(
    pictures: Pictures,
    patch: int,
    rows: Int[np.ndarray, "groups steps batch"],
    moves: Int[np.ndarray, "groups steps batch three"],
    *,
    device: torch.device | str = "cpu",
) -> Callable[[int], Inputs]:
    """Return the function from step to batch.

    Args:
        pictures: The images.
        patch: Side of a patch in pixels.
        rows: Training images that each group sees at each step.
        moves: How far each is moved down and to the right, and 1 where left and right are exchanged; what is moved in
            has the mean brightness.
        device: Where the batch is wanted; all training images are kept there.

    Returns:
        For :func:`attnbook.core.ensemble.train`.
    """
    side, margin = pictures.train.shape[1], int(np.abs(moves[..., :2]).max(initial=0))
    padded = np.pad(pictures.train, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    images, labels = torch.as_tensor(padded, device=device), torch.as_tensor(pictures.train_labels, device=device)
    chosen, moved = torch.as_tensor(rows, device=device), torch.as_tensor(moves, device=device)
    places = torch.arange(side, device=device)

    def batch(step: int) -> Inputs:
        numbers, (down, right, turned) = chosen[:, step], moved[:, step].unbind(-1)
        across = torch.where(turned[..., None] == 1, side - 1 - places, places) + margin - right[..., None]
        rows_ = places + margin - down[..., None]
        shown = images[numbers[..., None, None], rows_[..., :, None], across[..., None, :]]
        return Inputs(cut(shown, patch), labels[numbers])

    return batch


def parts(
    images: Float[np.ndarray, "samples side side channels"],
    labels: Int[np.ndarray, " samples"],
    patch: int,
    *,
    device: torch.device | str = "cpu",
    size: int = 250,
) -> Iterator[Inputs]:
    """Yield images in parts, one group for all members.

    Args:
        images: Images.
        labels: Their classes.
        patch: Side of a patch in pixels.
        device: Where they are wanted.
        size: Images per part.

    Yields:
        Inputs.
    """
    for first in range(0, len(images), size):
        shown = torch.as_tensor(images[None, first : first + size], device=device)
        yield Inputs(cut(shown, patch), torch.as_tensor(labels[None, first : first + size], device=device))


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
