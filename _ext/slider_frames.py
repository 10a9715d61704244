"""Puts all pictures of a slider in the place of the one that its notebook stores.

A chapter that runs with ``ATTNBOOK_FRAMES`` set writes them to that folder (``attnbook.core.widgets``): `make book` and
`make test` do. A page built from stored outputs without them shows the one picture.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.errors import ExtensionError

KEY = re.compile(r'<div class="attnbook-slider" data-frames="(\w+)">')


def frames_folder(root: Path) -> Path:
    """Return the folder of the frames of a book.

    Args:
        root: Folder of the book.

    Returns:
        The folder, which need not exist.
    """
    return root / "_build" / "frames"


def put_frames(app: Any, doctree: nodes.document) -> None:
    """Replace every stored picture of a slider whose frames are there; where chapters have just run they must be."""
    for output in doctree.findall(nodes.raw):
        if key := KEY.search(output.astext()):
            file = frames_folder(Path(app.srcdir)) / f"{key[1]}.html"
            app.env.note_dependency(str(file))
            if file.exists():
                output.children = [nodes.Text(file.read_text(encoding="utf-8"))]
            elif app.config.nb_execution_mode == "cache":
                raise ExtensionError(f"{app.env.docname}: no frames for slider {key[1]}; run `make clean book`")


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", put_frames)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
