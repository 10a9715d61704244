"""Settings are checked where they enter: an unknown name or a wrong type is refused by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["check_known", "check_types"]


def check_known(kind: type, names: Iterable[str]) -> None:
    """Refuse names that are no settings.

    Args:
        kind: Dataclass whose fields are the settings.
        names: Names to look up.

    Raises:
        ValueError: If one is unknown; the message names the nearest.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise ValueError(f"{name}: {kind.__name__} has no such setting; {hint}")


def check_types(settings: Any) -> None:
    """Refuse settings whose type is not that of their field.

    Args:
        settings: A dataclass; numbers, texts, tuples of these and alternatives are understood.

    Raises:
        TypeError: If a value does not fit.
    """
    kinds = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), kinds[field.name]
        if not _fits(value, kind):
            expected = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else kind
            raise TypeError(f"{field.name}: expected {expected}, got {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(kinds) == len(value) and all(map(_fits, value, kinds))
    if isinstance(value, bool):  # Python counts it among the whole numbers
        return kind in (bool, Any)
    if kind is float:
        return isinstance(value, int | float)
    return kind is Any or isinstance(value, kind)
