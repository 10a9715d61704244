"""Downloads by pooch: verified before they appear, tried twice, with a progress bar on a terminal only."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from attnbook.core.runtime import Progress, progress_bar

__all__ = ["DataError", "File", "Unreachable", "fetch", "is_intact", "sha256"]

CHUNK = 1 << 18
TIMEOUT = 30


class DataError(ValueError):
    """A data file is missing, damaged, not readable or not what it should be."""


class Unreachable(Exception):
    """A download was not possible; the message says why."""


@dataclass(frozen=True)
class File:
    """A file whose content is known.

    Attributes:
        path: Its name in a folder of data.
        size: Its size in bytes.
        sha256: Its checksum, in hexadecimal.
        url: Where it can be downloaded; default nowhere.
    """

    path: str
    size: int
    sha256: str
    url: str | None = None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(file: File, folder: Path) -> bool:
    """Return whether a folder holds a file with the right checksum; it may also be missing.

    Raises:
        DataError: If it is there and cannot be read.
    """
    path = folder / file.path
    try:
        return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def fetch(file: File, folder: Path) -> Path:
    """Return the path of a file, downloaded unless an intact one is there: whole and verified, or not at all.

    Args:
        file: A file with a ``url``.
        folder: Where to keep it; made when missing.

    Raises:
        Unreachable: If the server was not reached twice, the transfer broke off twice, the folder cannot be written,
            or pooch is not installed.
        DataError: If what the server sends has another checksum twice.
    """
    if is_intact(file, folder):
        return folder / file.path
    try:
        import pooch
        import requests
    except ImportError as error:
        raise Unreachable(f"{error.name} is not installed, which downloads need") from error
    host = urlsplit(file.url or "").hostname
    files = pooch.create(folder, "", registry={file.path: f"sha256:{file.sha256}"}, urls={file.path: file.url},
                         retry_if_failed=1)  # fmt: skip
    try:
        with _quiet(pooch.get_logger()), progress_bar(Path(file.path).name) as progress:
            bar = _Bar(progress) if progress else False
            files.fetch(file.path, downloader=pooch.HTTPDownloader(bar, CHUNK, timeout=TIMEOUT))
    except (requests.ConnectionError, requests.Timeout) as error:
        raise Unreachable(f"{host} was not reached") from error
    except requests.RequestException as error:
        raise Unreachable(f"the download from {host} failed: {_short(error)}") from error
    except ValueError as error:
        raise DataError(f"{file.path}: {host} twice sent a file with a wrong SHA-256; nothing was kept") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unreachable(f"the cache cannot be written: {reason}; set ATTNBOOK_CACHE to another folder") from error
    return folder / file.path


def _short(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"status {status}" if status else type(error).__name__


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch's remarks out of notebooks."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bar:
    """A progress bar as pooch wants one."""

    total = 0

    def __init__(self, progress: Progress) -> None:
        self.progress, self.done = progress, 0

    def update(self, size: int) -> None:
        self.done = min(self.done + size, self.total)
        self.progress(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
