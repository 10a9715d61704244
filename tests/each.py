"""One test that looks at many things of a kind, where a test for each would take longer to start than to run."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(things: Iterable[Any], check: Callable[[Any], None], name: Callable[[Any], str] = str) -> None:
    """Check each thing, and fail with the names of all that do not pass and with what is wrong with them.

    Args:
        things: What to look at; nothing to look at is a failure, too.
        check: Raises where something is wrong.
        name: The name of a thing, for the message.
    """
    seen, wrong = 0, []
    for thing in things:
        seen += 1
        try:
            check(thing)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{name(thing)}: {type(error).__name__}: {error}")
    assert seen, "nothing to look at"
    assert not wrong, f"{len(wrong)} of {seen}:\n" + "\n".join(wrong)
