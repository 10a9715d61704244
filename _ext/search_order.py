"""Makes the search put first what a reader means: enters the names of chapters and parts, and orders the results.

The title of a chapter is a question. Readers look for it by its short name, "noisy MNIST" or "noisy_mnist", by words
that ``chapters/map.toml`` calls ``asked``, or by a statement that it checks, "lemma 3" or "lemma 3 multi-head"; each
becomes an entry of the index that only the search reads. How results are ordered says ``search_order.js``.
"""

from __future__ import annotations

import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

from book_map import read_map
from docutils import nodes
from sphinx import addnodes
from sphinx.application import ENV_PICKLE_FILENAME
from sphinx.search.en import SearchEnglish

from attnbook import ledger

ORDER = Path(__file__).with_suffix(".js")
NUMBERED = re.compile(
    r"\b(Theorem|Lemma|Corollary|Proposition|Definition|Assumption|Claim|Table|Figure|Algorithm) [A-Z]?\.?\d+(\.\d+)?"
)


# What makes a question of words, and is found on every page.
ASKING = set(
    re.findall(
        r"\w+",
        """about am an any can could did do does from get had has have how i its me my our should so some than them they
        too very we what when where which who why would you your""",
    )
)


class English(SearchEnglish):
    """English that finds the stem of each word once, not once for each page, and in which questions may be asked."""

    stopwords = SearchEnglish.stopwords | ASKING

    def init(self, options: dict[str, str]) -> None:
        """Keep the stems."""
        super().init(options)
        self.stem = cache(self.stem)


def names(stem: str, short: str = "") -> list[str]:
    """Return what a reader types to find a chapter or a part, without repetitions.

    Args:
        stem: Name of its file or folder.
        short: A further name.

    Returns:
        Names in small letters, as the search compares them.

    Example:
        >>> names("structure_aware_descent", "structure-aware descent")[2:]
        ['structure-aware-descent', 'structure-aware descent']
    """
    found = [stem, stem.replace("_", " "), stem.replace("_", "-"), short.lower()]
    return [name for name in dict.fromkeys(found) if name]


def statements(chapter: str) -> list[str]:
    """Return the numbered statements that a chapter checks, alone and with the name of their paper."""
    places = [c.where for c in ledger.claims() if c.chapter == chapter and c.source == "paper"]
    numbered = sorted({found[0].lower() for place in places for found in NUMBERED.finditer(place)})
    papers = names(chapter.split("/")[0])[1:]
    return [text for one in numbered for text in (one, *(f"{one} {paper}" for paper in papers))]


def enter_names(app: Any, doctree: nodes.document) -> None:
    """Enter the names of a chapter or of the first page of a part, without an anchor: the result is the page itself."""
    chapters = read_map(Path(app.srcdir))
    name = app.env.docname.removeprefix("chapters/")
    if name in chapters:
        found = [*names(name.split("/")[1], chapters[name].short), *chapters[name].asked, *statements(name)]
    elif name.removesuffix("/index") in {chapter.paper for chapter in chapters.values()}:
        found = names(name.removesuffix("/index"))
    else:
        return
    doctree.append(addnodes.index(entries=[("single", each, "", "main", None) for each in found]))


def keep_index(app: Any, exception: Exception | None) -> None:
    """Store the environment once more: Sphinx stores it before the pages are written, so without their search entries.

    Else the next build would leave the entries of all pages that have not changed out of the search.
    """
    if exception is None and app.builder.format == "html":
        with (Path(app.doctreedir) / ENV_PICKLE_FILENAME).open("wb") as file:
            pickle.dump(app.env, file, pickle.HIGHEST_PROTOCOL)


def order_results(app: Any, config: Any) -> None:
    """Name the script that orders results, by its full path: Sphinx looks for it where the build was started."""
    config.html_search_scorer = str(ORDER)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx; at this point the printed index, in which these names would be in the way, is collected."""
    app.add_search_language(English)
    app.connect("config-inited", order_results)
    app.connect("build-finished", keep_index)
    app.connect("doctree-read", enter_names, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
