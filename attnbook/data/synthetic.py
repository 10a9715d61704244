"""Reviews of films that do not exist, written by templates: the stand-in for IMDB where there are no files."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np

from attnbook.core.rng import stream

__all__ = ["SIZES", "polar_words", "reviews"]

SIZES = {"train": 2000, "test": 1000, "unsup": 2000}
AGREEMENT = 0.8
SLOT = re.compile(r"{(\w+)}")


@cache
def reviews(split: str) -> tuple[tuple[int, int, int, str], ...]:
    """Return (label, id, rating, text) of each synthetic review of a split; always the same ones.

    A word of praise or blame agrees with the label in four cases of five. Lengths are lognormal, nearly as those of
    real reviews are, but shorter: 65 words on average.

    Args:
        split: ``train``, ``test`` or ``unsup``; the last has label -1 and rating 0 throughout.

    Example:
        >>> label, number, rating, text = reviews("test")[0]
        >>> label, number, 1 <= rating <= 4
        (0, 0, True)
    """
    rng, size = stream(0, "IMDB stand-in", split), SIZES[split]
    rows = []
    for k in range(size):
        label = 2 * k // size
        rating, text = int(rng.integers(1, 5)) + 6 * label, _review(rng, label)
        rows.append((-1, k, 0, text) if split == "unsup" else (label, k - label * size // 2, rating, text))
    return tuple(rows)


def polar_words() -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of praise and the words of blame.

    Example:
        >>> praise, blame = polar_words()
        >>> praise & blame
        frozenset()
    """
    _, words = _vocabulary()
    return frozenset(words["praise"]), frozenset(words["blame"])


@cache
def _vocabulary() -> tuple[list[str], dict[str, list[str]]]:
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return content["templates"], {slot: words.split() for slot, words in content["words"].items()}


def _review(rng: np.random.Generator, label: int) -> str:
    templates, words = _vocabulary()

    def fill(slot: re.Match[str]) -> str:
        if slot[1] == "quality":
            agrees = rng.random() < AGREEMENT
            return _pick(rng, words["praise" if agrees == bool(label) else "blame"])
        return _pick(rng, words[slot[1]])

    text = ""
    for _ in range(int(np.clip(np.exp(rng.normal(1.7, 0.7)), 1, 40))):
        sentence = SLOT.sub(fill, _pick(rng, templates))
        text += sentence[0].upper() + sentence[1:] + (" " if rng.random() < 0.85 else "<br /><br />")
    return text.removesuffix("<br /><br />").rstrip()


def _pick(rng: np.random.Generator, words: list[str]) -> str:
    return words[int(rng.random() * len(words))]  # a scalar of `integers` takes ten times as long
