"""Makes the search put first what a reader means: enters the names of chapters and parts, and orders the results.

The title of a chapter is a question. Readers look for it by its short name, "noisy MNIST" or "noisy_mnist"; each such
name becomes an entry of the index that only the search reads. How results are ordered says ``search_order.js``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from book_map import read_map
from docutils import nodes
from sphinx import addnodes

ORDER = Path(__file__).with_suffix(".js")


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


def enter_names(app: Any, doctree: nodes.document) -> None:
    """Enter the names of a chapter or of the first page of a part, without an anchor: the result is the page itself."""
    chapters = read_map(Path(app.srcdir))
    name = app.env.docname.removeprefix("chapters/")
    if name in chapters:
        found = names(name.split("/")[1], chapters[name].short)
    elif name.removesuffix("/index") in {chapter.paper for chapter in chapters.values()}:
        found = names(name.removesuffix("/index"))
    else:
        return
    doctree.append(addnodes.index(entries=[("single", each, "", "main", None) for each in found]))


def order_results(app: Any, config: Any) -> None:
    """Name the script that orders results, by its full path: Sphinx looks for it where the build was started."""
    config.html_search_scorer = str(ORDER)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx; at this point the printed index, in which these names would be in the way, is collected."""
    app.connect("config-inited", order_results)
    app.connect("doctree-read", enter_names, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
