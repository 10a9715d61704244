"""What is there, where and how large: behind ``attnbook data``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from attnbook.datasets import downloading
from attnbook.datasets.files import KNOWN, DataError, cache_folder, data_folder, is_verified, offline

__all__ = ["DOWNLOADS", "Entry", "available", "fetch"]

DOWNLOADS = {
    "mnist": tuple(path for path in KNOWN if path.startswith("mnist/")),
    "imdb": ("imdb/aclImdb_v1.tar.gz",),
    "cifar10": ("cifar10/cifar-10-binary.tar.gz",),
    "glove6B_100d": ("embeddings/glove.6B.zip",),
}


@dataclass(frozen=True)
class Entry:
    """A file of data that is there, or could be.

    Attributes:
        path: Its name in a folder of data.
        place: ``ATTNBOOK_DATA``, ``cache`` or ``download``.
        size: Bytes.
        state: ``verified``, ``own file``, ``damaged``, or ``fetch`` with the name to fetch it by.
    """

    path: str
    place: str
    size: int
    state: str


def available() -> list[Entry]:
    """Return the files in ``ATTNBOOK_DATA`` and the cache, and what could be downloaded. Known ones are verified.

    Raises:
        DataError: If ``ATTNBOOK_DATA`` is not a readable folder.
    """
    entries = []
    for place, folder in {"ATTNBOOK_DATA": data_folder(), "cache": cache_folder()}.items():
        if folder is not None:
            entries += [_entry(folder, path, place) for path in _files(folder)]
    there = {entry.path for entry in entries}
    for name, paths in DOWNLOADS.items():
        how = f"fetch {name}"
        entries += [Entry(path, "download", KNOWN[path].size, how) for path in paths if path not in there]
    return entries


def fetch(name: str) -> list[Path]:
    """Return the files of mnist, imdb, cifar10 or glove6B_100d, downloaded into the cache unless there and intact.

    Raises:
        DataError: If there is no such data set, or it could not be downloaded whole and verified.
    """
    if name not in DOWNLOADS:
        raise DataError(f"name: got {name!r}, expected one of {', '.join(DOWNLOADS)}")
    files, cache = [KNOWN[path] for path in DOWNLOADS[name]], cache_folder()
    if offline() and not all(downloading.is_intact(file, cache) for file in files):
        raise DataError(f"{name}: downloads are switched off by ATTNBOOK_OFFLINE=1")
    try:
        return [downloading.fetch(file, cache) for file in files]
    except downloading.Unreachable as error:
        raise DataError(f"{name}: {error}; put the files into ATTNBOOK_DATA or try again later") from error


def _files(folder: Path) -> list[str]:
    """Known files and word vectors of any name."""
    found = [path for path in KNOWN if os.path.isfile(folder / path)]
    vectors = sorted(f"embeddings/{file.name}" for file in (folder / "embeddings").glob("*.npz"))
    return found + [path for path in vectors if path not in found]


def _entry(folder: Path, path: str, place: str) -> Entry:
    size = (folder / path).stat().st_size
    known = KNOWN.get(path)
    download_only = known is not None and known.url is not None and place == "cache"
    try:
        state = "verified" if is_verified(folder, path) else "damaged" if download_only else "own file"
    except DataError:
        state = "damaged"
    return Entry(path, place, size, state)
