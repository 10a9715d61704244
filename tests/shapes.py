"""What jaxtyping's import hook applies to every function and class of the package while tests run."""

import re
from collections.abc import Callable
from typing import Any

from beartype import beartype

SHAPED = re.compile(r"\b(Bool|Float|U?Int8|Int|Shaped)\[")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments and the result of a function that states shapes; leave all others as users meet them."""
    shaped = any(SHAPED.search(str(annotation)) for annotation in function.__annotations__.values())
    return beartype(function) if shaped else function
