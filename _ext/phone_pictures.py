"""Loads the script that stacks the panels of pictures on a phone (``style/panels.js``) where a page has pictures.

The script shows text of pictures with at least 11 pixels; it is told the smallest that the chapter's pictures have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes

from attnbook.core.figures import style

PICTURE = re.compile(r'<(?:figure class="attnbook-figure"|div class="attnbook-slider")')
SIZE = re.compile(r"fontsize\W{1,3}([\d.]+)")  # as an argument or as an entry of a dictionary


def smallest_text(package: Path, page: str) -> float:
    """Return the smallest size of text in the pictures of a chapter, in points.

    Args:
        package: Folder of the package.
        page: Name of the page, ``chapters/<room>/<chapter>``.

    Returns:
        The smallest that the chapter's folder, or a module of its room, names; the house style's if none does.
    """
    import matplotlib as mpl

    with style():
        usual = float(mpl.rcParams["font.size"])
    folder = package / Path(page).relative_to("chapters")
    files = [*folder.glob("*.py"), *folder.parent.glob("*.py")]
    return min([usual, *(float(size) for file in files for size in SIZE.findall(file.read_text(encoding="utf-8")))])


def add_script(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load the script on the pages of chapters that have pictures."""
    if doctree is None or not any(PICTURE.search(output.astext()) for output in doctree.findall(nodes.raw)):
        return
    size = smallest_text(Path(app.srcdir) / "attnbook", pagename)
    app.add_js_file("panels.js", loading_method="defer", **{"data-smallest": f"{size:g}"})


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
