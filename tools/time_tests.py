"""Name the tests that `make quick` leaves out, in ``tests/slow.txt``: above a quarter of a second of processor time.

A test pays for the fixtures that it shares with others, too: left out, it would only leave them to the next one. What
is not timed, the tests of the built book, keeps its place in the list.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "tests" / "slow.txt"
LIMIT = 0.25
NOT_TIMED = "tests/book"
# One experiment of each room runs in any case: without these two `make quick` would try no experiment.
STAYS = {
    f"tests/test_experiments.py::{name}"
    for name in ("test_a_smoke_run_reports_progress_and_survives_a_round_trip", "test_killed_and_resumed_is_the_same")
}


def spent() -> float:
    """Return the processor time of this process and of those that it has waited for, in seconds."""
    return sum(os.times()[:4])


class Stopwatch:
    """A plugin that adds up what each test function takes."""

    def __init__(self) -> None:
        self.shared: Counter[str] = Counter()  # by name of the fixture
        self.users: defaultdict[str, set[str]] = defaultdict(set)
        self.tests: Counter[str] = Counter()
        self.within = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Time a fixture that tests share."""
        before = spent()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared[fixturedef.baseid + fixturedef.argname] += spent() - before
                self.within += spent() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Time a test, without those fixtures."""
        before, self.within, name = spent(), 0.0, item.nodeid.split("[")[0]
        try:
            return (yield)
        finally:
            self.tests[name] += spent() - before - self.within
            info = getattr(item, "_fixtureinfo", None)  # a doctest has none
            used = {one for found in (info.name2fixturedefs.values() if info else ()) for one in found}
            self.users[name].update(one.baseid + one.argname for one in used if one.scope != "function")

    def slow(self) -> list[str]:
        """Return the functions above the limit, but for those that stay."""
        total = {name: own + sum(self.shared[one] for one in self.users[name]) for name, own in self.tests.items()}
        return sorted(name for name, seconds in total.items() if seconds > LIMIT and name not in STAYS)


def main(places: list[str]) -> int:
    """Run all tests but those marked slow in their files, and store the names; or print them, of some tests only.

    Args:
        places: Files or folders of tests; all tests when empty.

    Returns:
        The exit status of pytest; nothing is stored unless it is 0.
    """
    watch = Stopwatch()
    os.environ["ATTNBOOK_TIME_TESTS"] = "1"  # the list of today leaves nothing out
    status = pytest.main(["-q", "-m", "not slow", "--ignore", NOT_TIMED, *(places or ["tests"])], plugins=[watch])
    kept = [name for name in STORE.read_text(encoding="utf-8").split() if name.startswith(NOT_TIMED)]
    if places or status:
        print(*watch.slow(), sep="\n")
    else:
        STORE.write_text("\n".join([*sorted([*kept, *watch.slow()]), ""]), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
