"""Where the files of a data set come from, and why they may be trusted.

Four places are asked in order: the folder ``ATTNBOOK_DATA``, the user cache (``ATTNBOOK_CACHE``, default
``attnbook`` in ``XDG_CACHE_HOME`` or ``~/.cache``), a download into that cache, and a stand-in made without any file.
``ATTNBOOK_OFFLINE=1`` forbids downloads. Folder and cache have one layout: ``mnist/``, ``imdb/``, ``cifar10/`` and
``embeddings/``, with the names that ``attnbook data`` lists.

Before a known file is read, its SHA-256 is compared with the one in ``files.toml``, which stands beside this module.
Files of your own, under the same names but of another size, are accepted in ``ATTNBOOK_DATA`` if they can be read.
Downloads appear under their final name only after their checksum was compared.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from attnbook.core.places import cache_folder
from attnbook.data.downloading import Unreachable, download, host_of
from attnbook.data.reading import DataError, readable

__all__ = ["DOWNLOADS", "KNOWN", "Entry", "File", "Forms", "available", "data_folder", "fetch", "obtain", "offline"]

T = TypeVar("T")
Forms: TypeAlias = Mapping[tuple[str, ...], Callable[..., T]]
"""The files of each form that a data set may have, and what reads them, the preferred form first."""

DAMAGED = "damaged (its SHA-256 is not the known one)"


@dataclass(frozen=True)
class File:
    """What is known of a file.

    Attributes:
        size: Its size in bytes.
        sha256: Its checksum, in hexadecimal.
        url: Where it can be downloaded; default nowhere.
    """

    size: int
    sha256: str
    url: str = ""


KNOWN = {
    path: File(**known)
    for path, known in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
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
    _may_be_read(folder)
    return folder


def offline() -> bool:
    """Return whether ``ATTNBOOK_OFFLINE`` forbids downloads: 1 does, 0 and nothing do not.

    Raises:
        DataError: If the variable holds anything else.
    """
    value = os.environ.get("ATTNBOOK_OFFLINE", "")
    if value not in ("", "0", "1"):
        raise DataError(f"ATTNBOOK_OFFLINE: got {value!r}, expected 1 or 0")
    return value == "1"


def available() -> list[Entry]:
    """Return the files in ``ATTNBOOK_DATA`` and the cache, and what could be downloaded. Known ones are verified.

    Raises:
        DataError: If ``ATTNBOOK_DATA`` is not a readable folder.
    """
    entries = []
    for place, folder in _places().items():
        vectors = sorted(f"embeddings/{file.name}" for file in (folder / "embeddings").glob("*.npz"))
        for path in dict.fromkeys([*KNOWN, *vectors]):
            if os.path.isfile(folder / path):
                try:
                    state = _state(place, folder, path)
                except DataError:
                    state = "damaged"
                entries.append(Entry(path, place, (folder / path).stat().st_size, state))
    there = {entry.path for entry in entries}
    for name, paths in DOWNLOADS.items():
        entries += [Entry(p, "download", KNOWN[p].size, f"fetch {name}") for p in paths if p not in there]
    return entries


def fetch(name: str) -> list[Path]:
    """Return the files of mnist, imdb, cifar10 or glove6B_100d, downloaded into the cache unless there and intact.

    Raises:
        DataError: If there is no such data set, or it could not be downloaded whole and verified.
    """
    if name not in DOWNLOADS:
        raise DataError(f"name: got {name!r}, expected one of {', '.join(DOWNLOADS)}")
    allowed = not offline()
    try:
        return [_downloaded(path, allowed) for path in DOWNLOADS[name]]
    except Unreachable as error:
        later = "try again later" if allowed else "unset ATTNBOOK_OFFLINE"
        raise DataError(f"{name}: {error}; put the files into ATTNBOOK_DATA or {later}") from error


def obtain(
    title: str, forms: Forms[T], *, download: bool, stand_in: Callable[[], tuple[T, str]] | None
) -> tuple[T, str, bool]:
    """Return a data set from the first place that has it, where that was, and whether it is the stand-in.

    Args:
        title: Its name, for messages.
        forms: Forms it may have, the preferred one first.
        download: Whether it may be downloaded; ``ATTNBOOK_OFFLINE=1`` forbids it in any case.
        stand_in: Makes (data, description) where nothing was found; None raises an error instead.

    Raises:
        DataError: If a file is damaged, half of a set is missing, or nothing was found and no stand-in is wanted.
    """
    allowed, reason = download and not offline(), "there is nothing to download"
    for place, folder in _places().items():
        if paths := _whole(place, folder, forms):
            states = {path: _state(place, folder, path) for path in paths}
            for path in [path for path, state in states.items() if state == "damaged"]:
                if place != "cache" or not KNOWN[path].url:
                    raise DataError(f"{folder / path}: {DAMAGED}; copy it there again")
                _downloaded(path, allowed)
            own = "own file" in states.values()
            trust = "files of your own, read without a checksum" if own else "checksums verified"
            source = f"{title}, from {'the user cache' if place == 'cache' else place} ({trust})"
            return forms[paths](*(folder / path for path in paths)), source, False
    for paths, read in forms.items():
        if all(path in KNOWN and KNOWN[path].url for path in paths):
            try:
                files = [_downloaded(path, allowed) for path in paths]
            except Unreachable as error:
                reason = str(error)
                break
            return read(*files), f"{title}, downloaded from {host_of(KNOWN[paths[0]].url)} (checksums verified)", False
    if stand_in is None:
        needed = " or ".join(", ".join(paths) for paths in forms)
        how = f"set ATTNBOOK_DATA to a folder with {needed}"
        raise DataError(f"{title}: not in ATTNBOOK_DATA nor in the user cache, and {reason}; {how}")
    content, described = stand_in()
    return content, f"stand-in: {described} ({reason})", True


def _places() -> dict[str, Path]:
    folder = data_folder()
    return ({"ATTNBOOK_DATA": folder} if folder else {}) | {"cache": cache_folder()}


def _may_be_read(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"ATTNBOOK_DATA: no permission to read {str(folder)!r}; change it or unset the variable")


def _state(place: str, folder: Path, path: str) -> str:
    """Verified, damaged or a file of the user's own: one that is not known, or of another size and no download."""
    known = KNOWN.get(path)
    with readable(file := folder / path):
        if known and file.stat().st_size == known.size:
            with file.open("rb") as content:
                same = hashlib.file_digest(content, "sha256").hexdigest() == known.sha256
            return "verified" if same else "damaged"
    return "damaged" if known and known.url and place == "cache" else "own file"


def _whole(place: str, folder: Path, forms: Forms[T]) -> tuple[str, ...] | None:
    """The first complete form; the folder of the user may hold none, but not a part of one."""
    missing = {paths: [path for path in paths if not os.path.isfile(folder / path)] for paths in forms}
    if place != "cache":
        for inner in {(folder / path).parent for paths in forms for path in paths}:
            if os.path.isdir(inner):
                _may_be_read(inner)
        if all(missing.values()):
            for paths, names in missing.items():
                if len(names) < len(paths):
                    raise DataError(f"{place}: {', '.join(names)} missing beside the other files of the set")
    return next((paths for paths, names in missing.items() if not names), None)


def _downloaded(path: str, allowed: bool) -> Path:
    """A file of the cache, downloaded unless an intact one is there."""
    cache, known = cache_folder(), KNOWN[path]
    there = os.path.isfile(cache / path)
    if there and _state("cache", cache, path) == "verified":
        return cache / path
    try:
        if not allowed:
            raise Unreachable("downloads are switched off")
        download(path, cache, known.sha256, known.url)
    except Unreachable as error:
        if not there:
            raise
        later = "try again later" if allowed else "allow downloads"
        raise DataError(
            f"{cache / path}: {DAMAGED} and could not be fetched again: {error}; delete it or {later}"
        ) from error
    return cache / path
