"""The folders of a user that this package writes to."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "user_folder"]


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
