"""MNIST and CIFAR-10 as plain arrays, and what takes their place where they cannot be had."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from attnbook.core.rng import stream
from attnbook.data.files import Forms, obtain
from attnbook.data.reading import DataError, arrays_of_npz, files_of_tar, readable

__all__ = ["Images", "cifar10", "digits", "mnist"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = [f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
RECORD = 1 + 3 * 32 * 32
N_TEST_DIGITS = 360
N_STAND_IN = 2000, 500


@dataclass(frozen=True)
class Images:
    """Images of ten classes, with labels.

    Attributes:
        train: Training images in uint8, ``(train, height, width)`` or, in colour, ``(train, height, width, 3)``.
        train_labels: Their classes, 0 to 9.
        test: Test images, of the same size.
        test_labels: Their classes.
        classes: Names of the classes.
        source: Where the images come from; show it beside every result.
        stand_in: Whether they only take the place of the real images.
    """

    train: np.ndarray
    train_labels: UInt8[np.ndarray, " train"]
    test: np.ndarray
    test_labels: UInt8[np.ndarray, " test"]
    classes: tuple[str, ...]
    source: str
    stand_in: bool = False


def mnist(*, download: bool = True, stand_in: bool = True) -> Images:
    """Return MNIST: 60,000 and 10,000 images of 28 x 28 pixels (LeCun, Cortes and Burges).

    Args:
        download: Whether 11 MB may be downloaded where neither ``ATTNBOOK_DATA`` nor the cache has them.
        stand_in: Whether :func:`digits` may take their place, which ``source`` says; if not, an error is raised.

    Raises:
        DataError: If a file is damaged, or nothing was found and no stand-in is wanted.

    Example:
        >>> mnist(download=False).test.shape[1:]
        (28, 28)
    """
    names = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    forms: Forms[Arrays] = {tuple(f"mnist/{name}" for name in names): _read_mnist}
    arrays, source, made = obtain("MNIST", forms, download=download, stand_in=_enlarged_digits if stand_in else None)
    return Images(*arrays, tuple("0123456789"), source, made)


def digits() -> Images:
    """Return scikit-learn's 8 x 8 digits, enlarged to the 28 x 28 pixels of MNIST: each thrice, a margin of 2.

    They come with scikit-learn, so no file and no network is needed. The last 360 of the 1,797 are the test images.

    Raises:
        DataError: If scikit-learn is not installed.
    """
    arrays, described = _enlarged_digits()
    return Images(*arrays, tuple("0123456789"), f"stand-in: {described}", True)


def cifar10(*, download: bool = True, stand_in: bool = True) -> Images:
    """Return CIFAR-10: 50,000 and 10,000 colour images of 32 x 32 pixels (Krizhevsky 2009).

    ``ATTNBOOK_DATA`` may instead hold a subset, ``cifar10/cifar10_subset.npz``, with arrays ``x_train``, ``y_train``,
    ``x_test`` and ``y_test``. The stand-in has 2,000 and 500 striped patches, one direction and colour per class, under
    noise.

    Args:
        download: Whether 170 MB may be downloaded where neither ``ATTNBOOK_DATA`` nor the cache has them.
        stand_in: Whether the stand-in may take their place, which ``source`` says; if not, an error is raised.

    Raises:
        DataError: If a file is damaged, or nothing was found and no stand-in is wanted.
    """
    forms: Forms[Arrays] = {
        ("cifar10/cifar-10-binary.tar.gz",): _read_cifar_binary,
        ("cifar10/cifar10_subset.npz",): _read_cifar_subset,
    }
    arrays, source, made = obtain("CIFAR-10", forms, download=download, stand_in=_striped_patches if stand_in else None)
    classes = tuple(f"stripes {k}" for k in range(10)) if made else CLASSES
    return Images(*arrays, classes, f"{source}, {len(arrays[0]):,} + {len(arrays[2]):,} images", made)


def _read_mnist(*files: Path) -> Arrays:
    train, train_labels, test, test_labels = (_read_idx(file, 3 if "idx3" in file.name else 1) for file in files)
    for images, labels, file in ((train, train_labels, files[1]), (test, test_labels, files[3])):
        _check_labels(images, labels, file)
    return train, train_labels, test, test_labels


def _read_idx(file: Path, axes: int) -> np.ndarray:
    """Read an array of bytes: a magic number with type and number of axes, the shape, the bytes."""
    with readable(file), gzip.open(file) as content:
        raw = content.read()
    if len(raw) < 4 + 4 * axes or int.from_bytes(raw[:4]) != 0x800 + axes:
        raise DataError(f"{file}: not an idx file of bytes with {axes} axes")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">i4", axes, offset=4))
    if min(shape) < 0 or len(raw) != 4 + 4 * axes + prod(shape):
        raise DataError(f"{file}: promises {shape} bytes, holds {len(raw) - 4 - 4 * axes}")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def _read_cifar_binary(file: Path) -> Arrays:
    """Read the records of the archive: a label, then the image with the colour as first axis."""
    found, parts = dict(files_of_tar(file, BATCHES.__contains__)), []
    for name in BATCHES:
        raw = np.frombuffer(found.get(name, b""), np.uint8)
        if not raw.size or raw.size % RECORD:
            raise DataError(f"{file}: {name} holds {raw.size} bytes, expected a multiple of {RECORD}")
        parts.append(raw.reshape(-1, RECORD))
    train, test = np.concatenate(parts[:-1]), parts[-1]
    content = (_colours_last(train), train[:, 0].copy(), _colours_last(test), test[:, 0].copy())
    _check_labels(content[0], content[1], file)
    _check_labels(content[2], content[3], file)
    return content


def _colours_last(records: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_cifar_subset(file: Path) -> Arrays:
    train, train_labels, test, test_labels = arrays_of_npz(file, "x_train", "y_train", "x_test", "y_test")
    for images, labels in ((train, train_labels), (test, test_labels)):
        if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
            raise DataError(f"{file}: images {images.dtype} {images.shape}, expected uint8 (images, 32, 32, 3)")
        _check_labels(images, labels, file)
    return train, train_labels, test, test_labels


def _check_labels(images: np.ndarray, labels: np.ndarray, file: Path) -> None:
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1] or (labels > 9).any():
        raise DataError(f"{file}: labels must be uint8 from 0 to 9, one for each of the {len(images)} images")


def _enlarged_digits() -> tuple[Arrays, str]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the stand-in for MNIST needs scikit-learn; install it or set ATTNBOOK_DATA") from error
    bunch = load_digits()
    large = np.round(bunch.images * (255 / 16)).astype(np.uint8).repeat(3, axis=1).repeat(3, axis=2)
    images, labels = np.pad(large, ((0, 0), (2, 2), (2, 2))), bunch.target.astype(np.uint8)
    cut = len(images) - N_TEST_DIGITS
    return (images[:cut], labels[:cut], images[cut:], labels[cut:]), "scikit-learn's 8x8 digits, enlarged"


def _striped_patches() -> tuple[Arrays, str]:
    (train, train_labels), (test, test_labels) = (_stripes(n, part) for n, part in enumerate(N_STAND_IN))
    return (train, train_labels, test, test_labels), "synthetic striped patches instead of CIFAR-10"


def _stripes(part: int, n_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Stripes at 18 degrees times the class, at a random place, in the colour of the class, under strong noise."""
    rng = stream(0, "CIFAR-10 stand-in", part)
    labels = rng.permutation(np.arange(n_images) % 10)
    colours = stream(0, "CIFAR-10 stand-in", "colours").uniform(20.0, 60.0, (10, 3))
    angle, phase = np.pi * labels[:, None, None] / 10, rng.uniform(0, 2 * np.pi, (n_images, 1, 1))
    row, column = np.mgrid[:32, :32]
    waves = np.sin(0.7 * (np.cos(angle) * row + np.sin(angle) * column) + phase)
    clean = 128 + waves[..., None] * colours[labels][:, None, None, :]
    noisy = clean + 40.0 * rng.standard_normal(clean.shape)
    return np.clip(np.round(noisy), 0, 255).astype(np.uint8), labels.astype(np.uint8)
