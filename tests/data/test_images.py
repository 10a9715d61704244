"""Images: the formats, what is refused, and the stand-ins."""

import gzip
import io
import tarfile

import numpy as np
import pytest

from attnbook.data import DataError, cifar10, digits, mnist
from attnbook.data.images import BATCHES, CLASSES

RNG = np.random.default_rng(0)
TRAIN, TEST = RNG.integers(0, 256, (7, 5, 11), np.uint8), RNG.integers(0, 256, (3, 5, 11), np.uint8)
TRAIN_LABELS, TEST_LABELS = np.arange(7, dtype=np.uint8), np.arange(3, dtype=np.uint8)
NAMES = [f"mnist/{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3")]
LAST = "mnist/t10k-labels-idx1-ubyte.gz"
SUBSET = "cifar10/cifar10_subset.npz"


def idx(array, magic=None):
    head = (magic or 0x800 + array.ndim).to_bytes(4) + b"".join(n.to_bytes(4) for n in array.shape)
    return head + array.tobytes()


@pytest.fixture
def small_mnist(data, write):
    for name, array in zip([*NAMES, LAST], (TRAIN, TRAIN_LABELS, TEST, TEST_LABELS), strict=True):
        write(data, name, gzip.compress(idx(array)))
    return data


def test_mnist_is_read_as_it_was_written(small_mnist):
    found = mnist()
    for array, expected in (
        (found.train, TRAIN), (found.train_labels, TRAIN_LABELS), (found.test, TEST), (found.test_labels, TEST_LABELS)
    ):  # fmt: skip
        assert array.dtype == np.uint8
        assert array.flags.writeable
        np.testing.assert_array_equal(array, expected)
    assert found.source == "MNIST, from ATTNBOOK_DATA (files of your own, read without a checksum)"
    assert not found.stand_in
    assert found.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(TEST_LABELS), "damaged, cut off or of another format"),
        (gzip.compress(idx(TEST_LABELS))[:-9], "damaged, cut off or of another format"),
        (gzip.compress(idx(TEST_LABELS))[:5], "damaged, cut off or of another format"),
        (b"", "not an idx file"),
        (gzip.compress(b"\0\0\x08"), "not an idx file of bytes with 1 axes"),
        (gzip.compress(idx(TEST_LABELS, 0x803)), "not an idx file"),
        (gzip.compress(idx(TEST_LABELS)[:-1]), r"promises \(3,\) bytes, holds 2"),
        (gzip.compress(idx(TEST_LABELS) + b"\0"), r"promises \(3,\) bytes, holds 4"),
        (gzip.compress(b"\0\0\x08\x01\xff\xff\xff\xff"), r"promises \(-1,\)"),
        (gzip.compress(idx(TEST_LABELS + 8)), "labels must be uint8 from 0 to 9, one for each of the 3 images"),
        (gzip.compress(idx(TEST_LABELS[:2])), "one for each of the 3 images"),
    ],
)
def test_other_files_in_the_place_of_mnist_are_refused_by_name(content, message, small_mnist, write):
    write(small_mnist, LAST, content)
    with pytest.raises(DataError, match=f"t10k-labels-idx1-ubyte.gz: .*{message}"):
        mnist()


def test_digits_take_the_place_of_mnist():
    found = mnist(download=False)
    assert found.stand_in
    assert found.source == "stand-in: scikit-learn's 8x8 digits, enlarged (downloads are switched off)"
    assert (found.train.shape, found.test.shape) == ((1437, 28, 28), (360, 28, 28))
    np.testing.assert_array_equal(found.train, digits().train)
    with pytest.raises(DataError, match="MNIST: not in ATTNBOOK_DATA"):
        mnist(download=False, stand_in=False)


def test_digits_are_those_of_scikit_learn_with_every_pixel_thrice_and_a_margin():
    from sklearn.datasets import load_digits

    found, original = digits(), load_digits()
    images = np.concatenate([found.train, found.test])
    for shift in range(3):
        inner = images[:, 2 + shift : 26 : 3, 2 + shift : 26 : 3]
        np.testing.assert_array_equal(np.round(inner / 255 * 16), original.images)
    assert images[:, :2].max() == images[:, 26:].max() == images[..., :2].max() == images[..., 26:].max() == 0
    assert images.max() == 255
    np.testing.assert_array_equal(np.concatenate([found.train_labels, found.test_labels]), original.target)
    assert set(found.test_labels) == set(range(10))


def test_a_machine_without_scikit_learn_is_told(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="needs scikit-learn; install it or set ATTNBOOK_DATA"):
        mnist(download=False)


def archive(**replaced):
    """The binary archive with two images per batch; image k of batch b has label b + k and pixels that say where."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for b, name in enumerate(BATCHES):
            colours = np.arange(3 * 32 * 32).reshape(3, 32, 32) % 251 + b
            records = b"".join(bytes([b + k]) + colours.astype(np.uint8).tobytes() for k in range(2))
            content = replaced.get(f"batch_{b}", records)
            if content is not None:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_the_binary_archive_of_cifar_is_read_with_the_colour_last(data, write):
    write(data, "cifar10/cifar-10-binary.tar.gz", archive())
    found = cifar10()
    assert (found.train.shape, found.test.shape) == ((10, 32, 32, 3), (2, 32, 32, 3))
    assert found.train_labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert found.test_labels.tolist() == [5, 6]
    for row, column, colour in ((0, 0, 0), (0, 1, 0), (17, 5, 1), (31, 31, 2)):
        value = (colour * 1024 + row * 32 + column) % 251
        assert found.train[0, row, column, colour] == value
        assert found.test[1, row, column, colour] == value + 5
    assert found.classes == CLASSES
    assert found.source.endswith(", 10 + 2 images")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive(batch_1=bytes(3072)), "data_batch_2.bin holds 3072 bytes, expected a multiple of 3073"),
        (archive(batch_5=b""), "test_batch.bin holds 0 bytes"),
        (archive(batch_3=bytes([10]) + bytes(3072)), "labels must be"),
        (archive(batch_4=None), "data_batch_5.bin"),
        (archive()[:-50], "damaged, cut off"),
        (b"no archive", "damaged, cut off"),
    ],
)
def test_other_archives_in_the_place_of_cifar_are_refused_by_name(content, message, data, write):
    write(data, "cifar10/cifar-10-binary.tar.gz", content)
    with pytest.raises(DataError, match=f"cifar-10-binary.tar.gz: .*{message}"):
        cifar10()


def subset(**replaced):
    colour = RNG.integers(0, 256, (5, 32, 32, 3), np.uint8)
    arrays = {"x_train": colour[:3], "y_train": TRAIN_LABELS[:3], "x_test": colour[3:], "y_test": TEST_LABELS[:2]}
    out = io.BytesIO()
    np.savez(out, **{name: array for name, array in (arrays | replaced).items() if array is not None})
    return out.getvalue()


def test_a_subset_of_cifar_is_read_and_says_its_size(data, write):
    write(data, SUBSET, subset())
    found = cifar10()
    assert found.train_labels.tolist() == [0, 1, 2]
    assert found.source.endswith("read without a checksum), 3 + 2 images")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (subset(y_train=None), "y_train"),
        (subset(y_train=TRAIN_LABELS), "one for each of the 3 images"),
        (subset(y_test=np.array([1, 2])), "labels must be uint8"),
        (subset(x_test=np.zeros((2, 3, 32, 32), np.uint8)), r"images uint8 \(2, 3, 32, 32\), expected uint8"),
        (subset(x_test=np.zeros((2, 32, 32, 3))), "images float64"),
        (subset(y_test=np.array([{}, {}])), "allow_pickle=False"),
        (subset()[:-70], "damaged, cut off"),
    ],
)
def test_other_subsets_are_refused_by_name(content, message, data, write):
    write(data, SUBSET, content)
    with pytest.raises(DataError, match=f"cifar10_subset.npz: .*{message}"):
        cifar10()


def test_striped_patches_take_the_place_of_cifar():
    found = cifar10(download=False)
    assert found.stand_in
    assert "synthetic striped patches instead of CIFAR-10 (downloads are switched off)" in found.source
    assert (found.train.shape, found.test.shape) == ((2000, 32, 32, 3), (500, 32, 32, 3))
    assert np.bincount(found.train_labels).tolist() == [200] * 10
    again = cifar10(download=False)
    np.testing.assert_array_equal(found.train, again.train)
    assert found.train[0, 0, :2].tolist() == [[69, 63, 154], [25, 141, 60]]
    assert not (found.train[:500] == found.test).all()


def test_the_class_of_a_striped_patch_can_be_told_from_its_spectrum():
    """Nearest mean of the spectra: what a network must learn, done by hand."""
    found = cifar10(download=False)

    def spectra(images):
        grey = images.mean(axis=3)
        return np.abs(np.fft.rfft2(grey - grey.mean(axis=(1, 2), keepdims=True))).reshape(len(images), -1)

    train, test = spectra(found.train), spectra(found.test)
    means = np.stack([train[found.train_labels == k].mean(axis=0) for k in range(10)])
    guess = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (guess == found.test_labels).mean() > 0.9
