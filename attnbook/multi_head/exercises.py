"""Checks of the exercises of this part."""

from collections.abc import Callable
from typing import Any

__all__ = ["CHECKS"]

CHECKS: dict[str, Callable[[Callable[..., Any]], str | None]] = {}
