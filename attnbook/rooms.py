"""The rooms of the book: one package per paper that the ledger has."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

__all__ = ["rooms"]

CLAIMS = Path(__file__).parent / "ledger" / "claims"  # read here: the ledger stands on modules that stand on this one


@cache
def rooms() -> dict[str, str]:
    """Return the package of each paper by the prefix of its claims and exercises, in the order of the book.

    Returns:
        For example ``GA`` to ``attnbook.global_attention``.

    Raises:
        ValueError: If the head of a file of claims cannot be read.
    """
    parts = {}
    for file in CLAIMS.glob("*.toml"):
        try:
            head = tomllib.loads(file.read_text(encoding="utf-8"))["paper"]
            parts[head["part"]] = (head["prefix"], f"attnbook.{file.stem}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file.name}: cannot be read: {error!r}; `attnbook list` says more") from error
    return dict(parts[part] for part in sorted(parts))
