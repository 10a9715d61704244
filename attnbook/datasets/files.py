"""Where the files of a data set come from, and why they may be trusted.

Four places are asked in order: the folder ``ATTNBOOK_DATA``, the user cache (``ATTNBOOK_CACHE``, default
``attnbook`` in ``XDG_CACHE_HOME`` or ``~/.cache``), a download into that cache, and a stand-in made without any file.
``ATTNBOOK_OFFLINE=1`` forbids downloads. Folder and cache have one layout: ``mnist/``, ``imdb/``, ``cifar10/`` and
``embeddings/``, with the names that ``attnbook data`` lists.

Before a known file is read, its SHA-256 is compared with the list below. Files of your own, under the same names but of
another size, are accepted in ``ATTNBOOK_DATA`` if they can be read. Downloads appear under their final name only after
their checksum was compared.

The checksums of the four files of MNIST were compared with real files, whose MD5s are those that torchvision lists; so
were those of the prepared files that have no address. Those of the three large archives were not: CIFAR-10's is listed
by TensorFlow Datasets, GloVe's by Embeddings.jl, and IMDB's stands in several public repositories (a pointer to the
archive in iamsorenl/Feature-Engineering-and-Sentiment-Analysis gives its size as well).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from attnbook.core import places
from attnbook.datasets import downloading
from attnbook.datasets.downloading import DataError, File
from attnbook.datasets.unpacking import readable

__all__ = ["KNOWN", "DataError", "Form", "Obtained", "cache_folder", "complete", "data_folder", "obtain", "offline"]

T = TypeVar("T")

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"

KNOWN = {
    file.path: file
    for file in (
        File("mnist/train-images-idx3-ubyte.gz", 9_912_422,
             "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", _MNIST + "train-images-idx3-ubyte.gz"),
        File("mnist/train-labels-idx1-ubyte.gz", 28_881,
             "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", _MNIST + "train-labels-idx1-ubyte.gz"),
        File("mnist/t10k-images-idx3-ubyte.gz", 1_648_877,
             "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", _MNIST + "t10k-images-idx3-ubyte.gz"),
        File("mnist/t10k-labels-idx1-ubyte.gz", 4_542,
             "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", _MNIST + "t10k-labels-idx1-ubyte.gz"),
        File("imdb/aclImdb_v1.tar.gz", 84_125_825, "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
             "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"),
        File("cifar10/cifar-10-binary.tar.gz", 170_052_171,
             "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
             "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        File("embeddings/glove.6B.zip", 862_182_613, "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
             "https://nlp.stanford.edu/data/glove.6B.zip"),
        File("imdb/imdb_train.jsonl.gz", 13_018_705,
             "a3c2c099a03f8889c75fbe6d912c6d0a9bfa7e0b86ba65e42982044b82dbd456"),
        File("imdb/imdb_test.jsonl.gz", 12_713_688, "750e735a2906ebc55584aa7f51a2bf3f07fb647f8eae45d32efc03da9f1038f9"),
        File("imdb/imdb_unsup.jsonl.gz", 26_027_092,
             "b9522b36e50fd277f2c757292d28f6a68438824c8d90f19a922e828aa8404fe1"),
        File("cifar10/cifar10_subset.npz", 31_084_644,
             "78a33e26fad4f414d09d4944ee56fb584bf70ea67db8ccb8c8c47ada02823423"),
        File("embeddings/imdb_ppmi_svd_100d.npz", 5_761_804,
             "51a2f2e1983baf7fa458c5dcf390c0fba611c3aca847c76ca4978b272a05d7ec"),
        File("embeddings/imdb_word2vec_100d.npz", 5_750_197,
             "4064bb873f98b9a96f6e70154b8efc25b1c801d279870e2ac79bf3376e452daa"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Form(Generic[T]):
    """One of the forms in which a data set may lie in a folder.

    Attributes:
        paths: Its files, as they are named in the folder.
        read: Makes the data from the files, in the same order.
    """

    paths: tuple[str, ...]
    read: Callable[[list[Path]], T]


@dataclass(frozen=True)
class Obtained(Generic[T]):
    """What was found, and where.

    Attributes:
        content: The data.
        source: Where they come from, for readers.
        stand_in: Whether they only take the place of the real data.
    """

    content: T
    source: str
    stand_in: bool = False


def data_folder() -> Path | None:
    """Return the folder ``ATTNBOOK_DATA``, or None where the variable is not set.

    Raises:
        DataError: If it is not a folder, or may not be read.
    """
    if not (value := os.environ.get("ATTNBOOK_DATA")):
        return None
    folder = Path(value).expanduser()
    if not os.path.isdir(folder):
        raise DataError(f"ATTNBOOK_DATA: no folder {value!r}; name an existing folder or unset the variable")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"ATTNBOOK_DATA: no permission to read {value!r}; change it or unset the variable")
    return folder


def cache_folder() -> Path:
    """Return the folder of downloaded and trained files (see above); it need not exist.

    Raises:
        DataError: If there is no home folder.
    """
    try:
        return places.cache_folder()
    except ValueError as error:
        raise DataError(str(error)) from error


def offline() -> bool:
    """Return whether ``ATTNBOOK_OFFLINE`` forbids downloads: 1 does, 0 and nothing do not.

    Raises:
        DataError: If the variable holds anything else.
    """
    value = os.environ.get("ATTNBOOK_OFFLINE", "")
    if value not in ("", "0", "1"):
        raise DataError(f"ATTNBOOK_OFFLINE: got {value!r}, expected 1 or 0")
    return value == "1"


def complete(folder: Path, forms: Sequence[Form[T]]) -> Form[T] | None:
    """Return the first form all of whose files lie in a folder, or None."""
    return next((form for form in forms if all(os.path.isfile(folder / path) for path in form.paths)), None)


def obtain(
    title: str, forms: Sequence[Form[T]], *, download: bool, stand_in: Callable[[], tuple[T, str]] | None
) -> Obtained[T]:
    """Return a data set from the first place that has it, and say where that is.

    Args:
        title: Its name, for messages.
        forms: Forms it may have, the preferred one first.
        download: Whether it may be downloaded; ``ATTNBOOK_OFFLINE=1`` forbids it in any case.
        stand_in: Makes (data, description) where nothing was found; None raises an error instead.

    Raises:
        DataError: If a file is damaged, half of a set is missing, or nothing was found and no stand-in is wanted.
    """
    allowed, folder, cache = download and not offline(), data_folder(), cache_folder()
    if folder is not None and (form := _whole(folder, forms)):
        verified = [is_verified(folder, path) for path in form.paths]
        return _read(form, folder, f"{title}, from ATTNBOOK_DATA ({_trust(verified)})")
    if form := complete(cache, forms):
        verified = [_mended(path, cache, allowed) or is_verified(cache, path) for path in form.paths]
        return _read(form, cache, f"{title}, from the user cache ({_trust(verified)})")
    found = next((form for form in forms if all(path in KNOWN and KNOWN[path].url for path in form.paths)), None)
    if found is None:
        reason = "there is nothing to download"
    elif not allowed:
        reason = "downloads are switched off"
    else:
        try:
            for path in found.paths:
                downloading.fetch(KNOWN[path], cache)
            return _read(found, cache, f"{title}, downloaded from {_host(found)} (checksums verified)")
        except downloading.Unreachable as error:
            reason = str(error)
    if stand_in is None:
        raise DataError(f"{title}: not in ATTNBOOK_DATA nor in the user cache, and {reason}; {_how_to(forms)}")
    content, described = stand_in()
    return Obtained(content, f"stand-in: {described} ({reason})", True)


def is_verified(folder: Path, path: str) -> bool:
    """Return whether a file of a folder of data is the known one of its name; one of another size is the user's own.

    Raises:
        DataError: If the size is that of the known file and the checksum is not, or the file cannot be read.
    """
    known = KNOWN.get(path)
    with readable(folder / path):
        if known is None or (folder / path).stat().st_size != known.size:
            return False
        if downloading.sha256(folder / path) != known.sha256:
            raise DataError(f"{folder / path}: damaged (its SHA-256 is not the known one); copy it there again")
    return True


def _whole(folder: Path, forms: Sequence[Form[T]]) -> Form[T] | None:
    """The first complete form; none of any form is fine too, but not a part of one."""
    for inner in {(folder / path).parent for form in forms for path in form.paths}:
        if os.path.isdir(inner) and not os.access(inner, os.R_OK | os.X_OK):
            raise DataError(f"ATTNBOOK_DATA: no permission to read {str(inner)!r}; change it or unset the variable")
    if form := complete(folder, forms):
        return form
    for form in forms:
        missing = [path for path in form.paths if not os.path.isfile(folder / path)]
        if 0 < len(missing) < len(form.paths):
            raise DataError(f"ATTNBOOK_DATA: {', '.join(missing)} missing beside the other files of the set")
    return None


def _read(form: Form[T], folder: Path, source: str) -> Obtained[T]:
    return Obtained(form.read([folder / path for path in form.paths]), source)


def _mended(path: str, cache: Path, allowed: bool) -> bool:
    """Whether a file is a download; a damaged one is fetched again."""
    known = KNOWN.get(path)
    if known is None or not known.url:
        return False
    if downloading.is_intact(known, cache):
        return True
    damaged = f"{cache / path}: damaged (its SHA-256 is not the known one)"
    if not allowed:
        raise DataError(f"{damaged}, and downloads are switched off; delete it or allow downloads")
    try:
        downloading.fetch(known, cache)
    except downloading.Unreachable as error:
        raise DataError(f"{damaged} and could not be fetched again: {error}; delete it or try again later") from error
    return True


def _trust(verified: list[bool]) -> str:
    return "checksums verified" if all(verified) else "files of your own, read without a checksum"


def _host(form: Form[T]) -> str:
    return str(urlsplit(KNOWN[form.paths[0]].url or "").hostname)


def _how_to(forms: Sequence[Form[T]]) -> str:
    return "set ATTNBOOK_DATA to a folder with " + " or ".join(", ".join(form.paths) for form in forms)
