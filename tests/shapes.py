"""What jaxtyping's import hook applies to the functions and dataclasses of the package while tests run."""

import functools
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from beartype import beartype

SHAPED = re.compile(r"\b(Bool|Float|U?Int8|Int|Shaped)\[")
SEEN: dict[types.CodeType | None, bool] = {}
"""Whether a function states shapes; functions inside of others are made anew at each call."""


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments and the result of a function that states shapes; leave all others as users meet them."""
    shaped = any(SHAPED.search(str(annotation)) for annotation in function.__annotations__.values())
    return beartype(function) if shaped else function


def only_shaped(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Return jaxtyping's decorator for what states shapes: its bookkeeping takes longer than most functions."""

    @functools.wraps(jaxtyped)
    def chosen(thing: Any = None, **options: Any) -> Any:
        if thing is None:
            return functools.partial(chosen, **options)
        return jaxtyped(thing, **options) if states_shapes(thing) else thing

    return chosen


def states_shapes(thing: Any) -> bool:
    """Say whether a function, or what makes an object of a class, has an argument or a result with a shape."""
    function = thing.__init__ if isinstance(thing, type) else thing
    code = getattr(function, "__code__", None)
    if code not in SEEN:
        annotations = getattr(function, "__annotations__", {}).values()
        SEEN[code] = any(SHAPED.search(str(resolved(each, function))) for each in annotations)
    return SEEN[code]


def resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return what an annotation stands for, or its text where a name in it is known to the type checker only."""
    alone = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)["value"]
    except NameError:
        return annotation
