"""The rooms of the book: one package per paper that the ledger has."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from attnbook.core.places import checkout

__all__ = ["rooms"]


def rooms() -> dict[str, str]:
    """Return the package of each paper by the prefix of its claims and exercises, in the order of the book.

    Returns:
        For example ``GA`` to ``attnbook.global_attention``.

    Raises:
        ValueError: If this is not called from a checkout, or the head of a file of claims cannot be read.
    """
    return _rooms(checkout() / "chapters")


@cache
def _rooms(chapters: Path) -> dict[str, str]:
    parts = {}
    for file in chapters.glob("*/claims.toml"):
        try:
            head = tomllib.loads(file.read_text(encoding="utf-8"))["paper"]
            parts[head["part"]] = (head["prefix"], f"attnbook.{file.parent.name}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file.parent.name}/claims.toml: cannot be read: {error!r}") from error
    return dict(parts[part] for part in sorted(parts))
