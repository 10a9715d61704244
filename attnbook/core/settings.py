"""Settings are checked where they enter: an unknown name or a wrong type is refused by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = [
    "check_increasing", "check_known", "check_positive", "check_sizes", "check_types", "check_weights",
    "restored", "whole",
]  # fmt: skip


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
    """Refuse settings whose type is not that of their field; numbers of NumPy become those of Python.

    Args:
        settings: A dataclass; numbers, texts, tuples of these and alternatives are understood.

    Raises:
        TypeError: If a value does not fit.
    """
    kinds = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, kind = _plain(getattr(settings, field.name)), kinds[field.name]
        if not _fits(value, kind):
            expected = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else kind
            raise TypeError(f"{field.name}: expected {expected}, got {value!r}")
        object.__setattr__(settings, field.name, value)  # they may be frozen


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number, which may be one of NumPy, as one of Python.

    Args:
        name: What to call it in the message.
        value: The number.
        least: The smallest that will do; default 1.

    Returns:
        The number.

    Raises:
        ValueError: If it is not a whole number, or below ``least``.

    Example:
        >>> whole("steps", np.int64(5))
        5
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return int(value)


def restored(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they were before :func:`attnbook.core.results.plain` made JSON of them.

    Args:
        kind: Dataclass whose fields are the settings.
        plain: Settings, where lists stand for tuples and texts for infinity and NaN.

    Returns:
        The settings; their types are for :func:`check_types`.
    """
    kinds, found = get_type_hints(kind), {name: _tuples(value, lambda leaf: leaf) for name, value in plain.items()}
    return {n: v if _fits(v, kinds.get(n, Any)) else _tuples(plain[n], _number) for n, v in found.items()}


def _tuples(value: Any, leaf: Callable[[Any], Any]) -> Any:
    return tuple(_tuples(one, leaf) for one in value) if isinstance(value, list | tuple) else leaf(value)


def _number(leaf: Any) -> Any:
    return float(leaf) if leaf in ("inf", "-inf", "nan") else leaf


def check_sizes(settings: object, *names: str) -> None:
    """Refuse settings that are below 1.

    Args:
        settings: What has them as attributes.
        *names: Which ones.

    Raises:
        ValueError: If one is below 1.
    """
    for name in names:
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected at least 1, got {getattr(settings, name)}")


def check_positive(**numbers: float) -> None:
    """Refuse numbers that are not positive and finite.

    Args:
        **numbers: The numbers by their names.

    Raises:
        ValueError: If one is zero, negative, infinite or NaN.
    """
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise ValueError(f"{name}: expected a positive number, got {number}")


def check_weights(settings: object, *names: str) -> None:
    """Refuse settings that are negative or not finite.

    Args:
        settings: What has them as attributes.
        *names: Which ones.

    Raises:
        ValueError: If one is negative, infinite or NaN.
    """
    for name in names:
        if not 0 <= getattr(settings, name) < float("inf"):
            raise ValueError(f"{name}: expected a number of at least 0, got {getattr(settings, name)}")


def check_increasing(settings: object, *names: str, least: int = 1, above: float = 0) -> None:
    """Refuse settings that are not enough increasing numbers.

    Args:
        settings: What has them as attributes, each a tuple.
        *names: Which ones.
        least: How many numbers there must be; default one.
        above: What the first must be larger than; default 0.

    Raises:
        ValueError: If there are too few, or they do not increase, or the first is too small.
    """
    for name in names:
        values = getattr(settings, name)
        if len(values) < least or list(values) != sorted(set(values)) or values[0] <= above:
            raise ValueError(f"{name}: expected at least {least} increasing numbers above {above}, got {values}")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


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
