"""The folders that this package reads and writes: the checkout of the book, and a user's own."""

from __future__ import annotations

import os
from pathlib import Path

import attnbook

__all__ = ["cache_folder", "checkout", "user_folder"]


def checkout(start: Path | None = None) -> Path:
    """Return the checkout of the book that the working directory is in.

    Args:
        start: Where to look first; default the working directory.

    Returns:
        The nearest folder upwards with ``_toc.yml`` and ``chapters``, else the one that the package lies in.

    Raises:
        ValueError: If there is none.
    """
    start = start or Path.cwd()
    for folder in (start, *start.parents, Path(attnbook.__file__).parent.parent):
        if (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir():
            return folder
    raise ValueError(
        "checkout: chapters, claims and results are in the repository of the book, not in the installed package; "
        "clone it and call this from a folder of the clone"
    )


def cache_folder() -> Path:
    """Return ``ATTNBOOK_CACHE``, by default ``attnbook`` in ``XDG_CACHE_HOME`` or ``~/.cache``; it need not exist.

    Raises:
        ValueError: If there is no home folder.
    """
    if value := os.environ.get("ATTNBOOK_CACHE"):
        return Path(value).expanduser()
    return user_folder("XDG_CACHE_HOME", ".cache", "for the cache; set ATTNBOOK_CACHE to a folder")


def user_folder(variable: str, usual: str, purpose: str) -> Path:
    """Return this package's folder below another one of the user; it need not exist.

    Args:
        variable: Environment variable that names the other one.
        usual: Where that is in the home folder when the variable is not set.
        purpose: What is missing without a home folder, and what helps, for the message.

    Returns:
        The folder.

    Raises:
        ValueError: If there is no home folder.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "attnbook"
    except RuntimeError as error:
        raise ValueError(f"no home folder {purpose}") from error
