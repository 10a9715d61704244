"""Makes three indexes of one: words and statements, claims, and names of the package.

Sphinx writes every entry into ``genindex.html``. A reader who looks for a word finds it among thousands of names of
functions; so each entry goes to the index of the place that it leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sphinx.environment.adapters.indexentries import IndexEntries

Entries = list[tuple[str, list[Any]]]
PLACES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "genindex": ("Index", lambda uri: not uri.startswith(("reference/claims", "reference/api"))),
    "genindex-claims": ("Index of claims", lambda uri: uri.startswith("reference/claims")),
    "genindex-package": ("Index of the package", lambda uri: uri.startswith("reference/api")),
}


def chosen(entries: Entries, wanted: Callable[[str], bool]) -> Entries:
    """Return the part of an index whose links are wanted; letters and words without any are left out.

    Args:
        entries: An index as Sphinx creates it: letters, each with words; a word has links, words below it, and a key.
        wanted: Whether the address of a link belongs to this index.

    Returns:
        The same for the links that are wanted.
    """

    def links(all_links: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [link for link in all_links if wanted(link[1])]

    found: Entries = []
    for letter, words in entries:
        kept = []
        for word, (own, below, key) in words:
            inner = [(name, some) for name, more in below if (some := links(more))]
            if (some := links(own)) or inner:
                kept.append((word, (some, inner, key)))
        if kept:
            found.append((letter, kept))
    return found


def context(name: str, entries: Entries) -> dict[str, Any]:
    """Return what ``genindex.html`` writes on one of the pages."""
    title, wanted = PLACES[name]
    others = [(other, PLACES[other][0]) for other in PLACES if other != name]
    return {"index_title": title, "other_indexes": others, "genindexentries": chosen(entries, wanted)}


def fill(app: Any, pagename: str, templatename: str, page: dict[str, Any], doctree: Any) -> None:
    """Leave in the index that Sphinx writes what belongs there."""
    if pagename == "genindex" and "genindexentries" in page:
        page.update(context(pagename, page["genindexentries"]))


def more(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Write the other two."""
    entries = IndexEntries(app.env).create_index(app.builder)
    for name in PLACES:
        if name != "genindex":
            yield name, context(name, entries), "genindex.html"


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", fill)
    app.connect("html-collect-pages", more)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
