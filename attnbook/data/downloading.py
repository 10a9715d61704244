"""Downloads by pooch: verified before they appear, tried twice, with a progress bar on a terminal only."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from attnbook.core.runtime import Progress, progress_bar
from attnbook.data.reading import DataError

__all__ = ["Unreachable", "download", "host_of"]

CHUNK = 1 << 18
TIMEOUT = 30


class Unreachable(Exception):
    """A download was not possible; the message says why."""


def host_of(url: str) -> str | None:
    """Return the name of the machine in an address."""
    return urlsplit(url).hostname


def download(path: str, folder: Path, sha256: str, url: str) -> None:
    """Download a file unless an intact one is there: whole and verified, or not at all.

    Args:
        path: Its name in the folder.
        folder: Where to keep it; made when missing.
        sha256: Its checksum, in hexadecimal.
        url: Where it is.

    Raises:
        Unreachable: If the server was not reached twice, the transfer broke off twice, the folder cannot be written,
            or pooch is not installed.
        DataError: If what the server sends has another checksum twice.
    """
    try:
        import pooch
        import requests
    except ImportError as error:
        raise Unreachable(f"{error.name} is not installed, which downloads need") from error
    try:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)  # pooch's own way fails if another process is a moment earlier
        with ExitStack() as stack:
            stack.callback((log := pooch.get_logger()).setLevel, log.level)
            log.setLevel("ERROR")
            progress = stack.enter_context(progress_bar(file.name))
            by = pooch.HTTPDownloader(_Bar(progress) if progress else False, CHUNK, timeout=TIMEOUT)
            files = pooch.create(folder, "", registry={path: sha256}, urls={path: url}, retry_if_failed=1)
            files.fetch(path, downloader=by)
    except (requests.ConnectionError, requests.Timeout) as error:
        raise Unreachable(f"{host_of(url)} was not reached") from error
    except requests.RequestException as error:
        response = error.response
        why = type(error).__name__ if response is None else f"status {response.status_code}"
        raise Unreachable(f"the download from {host_of(url)} failed: {why}") from error
    except ValueError as error:
        raise DataError(f"{path}: {host_of(url)} twice sent a file with a wrong SHA-256; nothing was kept") from error
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Unreachable(f"the cache cannot be written: {why}; set ATTNBOOK_CACHE to another folder") from error


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
