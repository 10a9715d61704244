"""Images and their patches, the tokens of a vision transformer: CIFAR-10, and small digits that need no files.

From each data set the first training images are split at random into training, validation and further test images; the
test images are the first ones. So the subset of CIFAR-10 that ``ATTNBOOK_DATA`` may hold and the whole of it give the
same images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.data import DataError, Images, cifar10, digits
from attnbook.mirror_descent.real_text_and_images.transformer import Inputs

ImageSource: TypeAlias = Literal["cifar10", "digits"]
"""CIFAR-10, or scikit-learn's 8 x 8 digits."""
N_CLASSES = 10  # of either


class Labelled(NamedTuple):
    """Images with brightness standardised, and their classes."""

    images: Float[np.ndarray, "samples side side channels"]
    labels: Int[np.ndarray, " samples"]


@lru_cache(maxsize=1)
def load_images(
    source: ImageSource, *, n_train: int, n_validation: int, n_apart: int, n_test: int
) -> dict[str, Labelled]:
    """Load images for ``train``, ``validation`` and ``test``; those set apart from the first data join the last."""
    found = _cifar() if source == "cifar10" else digits()
    wanted = n_train + n_validation + n_apart
    if min(n_train, n_validation, n_test) < 1 or wanted > len(found.train) or n_test > len(found.test):
        raise ValueError(
            f"n_train, n_validation, n_apart, n_test: expected at least 1, and of {source} at most {len(found.train)} "
            f"for the first three together and {len(found.test)} for the last; got {n_train}, {n_validation}, "
            f"{n_apart} and {n_test}"
        )
    order = stream(0, "validation images").permutation(wanted)
    kept, judged, apart = np.split(order, [n_train, n_train + n_validation])
    splits = {
        "train": (found.train[kept], found.train_labels[kept]),
        "validation": (found.train[judged], found.train_labels[judged]),
        "test": (
            np.concatenate([found.test[:n_test], found.train[apart]]),
            np.concatenate([found.test_labels[:n_test], found.train_labels[apart]]),
        ),
    }
    # Brightness is standardised per colour channel by the training images.
    train = _brightness(splits["train"][0])
    mean, deviation = (np.float32(of(train, axis=(0, 1, 2), dtype=np.float64)) for of in (np.mean, np.std))
    return {
        name: Labelled((_brightness(images) - mean) / deviation, labels.astype(np.int64))
        for name, (images, labels) in splits.items()
    }


def cut(images: Float[Tensor, "*batch side side channels"], patch: int) -> Float[Tensor, "*batch patches pixels"]:
    """Cut images into square patches, row by row; each is one row of ``patch * patch * channels`` numbers."""
    *batch, side, _, channels = images.shape
    if patch < 1 or side % patch:
        raise ValueError(f"patch: expected a divisor of {side}, the side of the images, got {patch}")
    across = side // patch
    split = images.reshape(*batch, across, patch, across, patch, channels)
    return split.transpose(-3, -4).reshape(*batch, across * across, patch * patch * channels)


def batches(
    train: Labelled,
    patch: int,
    rows: Int[np.ndarray, "groups steps batch"],
    moves: Int[np.ndarray, "groups steps batch three"],
    *,
    device: torch.device | str = "cpu",
) -> Callable[[int], Inputs]:
    """Return the function from step to the batch of these rows, moved down and to the right and turned where 1.

    What is moved in has the mean brightness.
    """
    side, margin = train.images.shape[1], int(np.abs(moves[..., :2]).max(initial=0))
    padded = np.pad(train.images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    images, labels = torch.as_tensor(padded, device=device), torch.as_tensor(train.labels, device=device)
    chosen, moved = torch.as_tensor(rows, device=device), torch.as_tensor(moves, device=device)
    places = torch.arange(side, device=device)

    def batch(step: int) -> Inputs:
        numbers, (down, right, turned) = chosen[:, step], moved[:, step].unbind(-1)
        across = torch.where(turned[..., None] == 1, side - 1 - places, places) + margin - right[..., None]
        rows_ = places + margin - down[..., None]
        shown = images[numbers[..., None, None], rows_[..., :, None], across[..., None, :]]
        return Inputs(cut(shown, patch), labels[numbers])

    return batch


def parts(given: Labelled, patch: int, *, device: torch.device | str = "cpu", size: int = 250) -> Iterator[Inputs]:
    """Yield images in parts, one group for all members."""
    for first in range(0, len(given.images), size):
        images, labels = (torch.as_tensor(a[None, first : first + size], device=device) for a in given)
        yield Inputs(cut(images, patch), labels)


def _brightness(images: np.ndarray) -> np.ndarray:
    """Brightness from 0 to 1, with an axis of channels; of digits, one of the nine pixels that stand for each."""
    small = images if images.ndim == 4 else images[:, 2:-2:3, 2:-2:3, None]
    return small / np.float32(255)


def _cifar() -> Images:
    try:
        return cifar10(download=False, stand_in=False)
    except DataError as error:
        raise DataError(f"{error}; to get CIFAR-10: `attnbook data fetch cifar10`") from error
