"""Something that trains before the reader's eyes: in the page by its script, in JupyterLab and Colab by the package.

The output carries the first picture and, for the script (``style/train_*.js``), what it starts from; the script puts a
canvas in the place of the picture, which stays for print and for browsers without scripts. Its live form in a notebook
is that of a slider (:mod:`attnbook.core.widgets`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbook.core.widgets import Explorer, image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingPanel"]

NOTE = (
    "This is the first picture. It trains in the built book, where the browser runs scripts; run this cell to train it "
    "with the package."
)


class TrainingPanel(Explorer):
    """A figure that trains.

    Args:
        kind: Name of the script, ``style/train_<kind>.js``.
        setup: What the script starts from; numbers, texts, lists and dictionaries.
        draw: As in :func:`~attnbook.core.widgets.explore`.
        text: Likewise.
        start: Value of each slider at the start.
        labels: Label of each slider.
        **grid: Name of a slider to the values it takes; any number of pictures, as none but the first is stored.
    """

    def __init__(
        self,
        kind: str,
        setup: Mapping[str, Any],
        draw: Callable[..., Figure],
        *,
        text: Callable[..., str],
        start: Mapping[str, Any],
        labels: Mapping[str, str],
        **grid: Sequence[Any],
    ) -> None:
        super().__init__(draw, text, start, labels, grid)
        self.kind, self.setup = kind, setup

    def _repr_html_(self) -> str:
        """The first picture with its words, and what the script of the page needs to take its place."""
        picture, said = self._first
        setup = html.escape(json.dumps(self.setup, separators=(",", ":")), quote=True)
        return (
            f'<div class="attnbook-train" data-kind="{self.kind}" data-setup="{setup}">'
            f'<div class="attnbook-train-first"><div>{image(picture, said)}</div>'
            f'<p><span class="measured">{html.escape(said)}</span></p><p>{NOTE}</p></div></div>'
        )

    def _keep_frames(self, folder: Path) -> None:
        """Write none: the page trains by itself."""
