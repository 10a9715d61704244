"""What damaged files do: kept groups of seeds, stored results, archives of data; a part of ``tools/faults.py``."""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import made_data

from attnbook.core.results import ResultError, stored_measurements
from attnbook.data import DataError
from attnbook.data.files import KNOWN, File
from attnbook.registry import experiment

CUTS, FLIPS = 20, 200
TRIED = {"cut short": CUTS, "one bit changed": FLIPS}


@dataclass(frozen=True)
class Row:
    """A fault, what has to happen, how often it did and of how many."""

    fault: str
    expected: str
    good: int
    tried: int
    how: str = ""


def refused(read: Callable[[bytes], Any], content: bytes, *says: str) -> bool:
    """Whether a file is refused with an error that says all of this."""
    try:
        read(content)
    except (ResultError, DataError) as error:
        return all(part in str(error) for part in says)
    return False


def damaged(good: bytes, read: Callable[[bytes], Any], same: Callable[[Any, Any], bool], *says: str) -> Counter[str]:
    """How often a file cut short, or with one bit changed, is refused by name or read as what it was."""
    rng, right, seen = random.Random(0), read(good), Counter[str]()
    cuts = [("cut short", good[: rng.randrange(len(good))]) for _ in range(CUTS)]
    bits = [rng.randrange(8 * len(good)) for _ in range(FLIPS)]
    for how, content in [*cuts, *(("one bit changed", made_data.with_bit_changed(good, bit)) for bit in bits)]:
        seen[how] += refused(read, content, *says) or same(read(content), right)
    return seen


def results(work: Path) -> list[Row]:
    """Damage kept groups of seeds and stored results."""
    small, rows = experiment("implicit_bias.direction").at("smoke"), []
    kept, stored = work / "kept", work / "stored" / "book" / "implicit_bias.direction.json"
    small.store(small.run(device="cpu", workdir=kept), stored)
    for what, file, load in (
        ("a kept group of seeds", next(kept.iterdir()), lambda: small.run(device="cpu", workdir=kept)),
        ("a stored result", stored, lambda: small.load_stored("book")),
        ("a stored result, for the ledger", stored, lambda: stored_measurements(small.id, "book")),
    ):

        def read(content: bytes, file: Path = file, load: Callable[[], Any] = load) -> Any:
            file.write_bytes(content)
            with mock.patch.dict(os.environ, ATTNBOOK_RESULTS=str(work / "stored")):
                found = load()
            return found if isinstance(found, dict) else found.drop_attrs().to_dict()

        seen = damaged(good := file.read_bytes(), read, lambda a, b: repr(a) == repr(b), file.name, "run")
        expected = "refused by name with the remedy, or nothing that counts has changed"
        file.write_bytes(good)
        rows += [Row(f"{what}, {how}", expected, seen[how], tried) for how, tried in TRIED.items()]
    return rows


def archives(work: Path) -> list[Row]:
    """Damage a made file of every data set in each of its forms."""
    seen, tried = Counter[str](), Counter[str]()
    for name, made in made_data.sets().items():
        good, read = made.files[made.last], functools.partial(made.read, work / name)
        with mock.patch.dict(KNOWN, {made.last: File(len(good), "0" * 64)}):
            seen["another checksum"] += refused(read, good, made.last, "SHA-256")
        seen += damaged(good, read, made_data.same, made.last)
        tried += Counter({**TRIED, "another checksum": 1})
        if (outside := made_data.leading_outside(made)) is not None:
            same = made_data.same(read(outside), read(good)) and not list(work.rglob("outside*"))
            seen["a name with `..`"] += same
            tried["a name with `..`"] += 1
    expected = dict.fromkeys(tried, "refused by name") | dict.fromkeys(TRIED, "refused by name, or nothing has changed")
    expected["a name with `..`"] = "read, and nothing is written"
    how = "made files of MNIST, IMDB (2 forms), CIFAR-10 (2), word vectors and GloVe"
    return [Row(f"archive of data: {what}", expected[what], seen[what], tried[what], how) for what in tried]
