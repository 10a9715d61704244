"""Sliders that move a figure: in JupyterLab and Colab through the kernel, in the built book without one.

One output carries two forms: a widget that redraws through the kernel, and, for front ends without one, the first
picture with its words. Where the environment variable ``ATTNBOOK_FRAMES`` names a folder, all pictures are drawn and
written there as one piece of HTML that needs no kernel, no library and no network; the built book shows that one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbook.core import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Explorer", "explore"]

FRAME_DPI = 100
FRAME_COLORS = 64
MOST_FRAMES = 80
VIEW = "application/vnd.jupyter.widget-view+json"

# Finds the frame whose number the sliders spell, shows it, and says so in words.
MOVE = (
    "var r=this.closest('.attnbook-slider'),s=r.querySelectorAll('input'),k=0;"
    "for(var i=0;i<s.length;i++){var o=JSON.parse(s[i].dataset.values);k=k*o.length+(+s[i].value);"
    "s[i].nextElementSibling.textContent=o[s[i].value];s[i].setAttribute('aria-valuetext',o[s[i].value]);}"
    "var f=r.querySelectorAll('img'),t=r.querySelectorAll('.attnbook-slider-text span');"
    "for(var j=0;j<f.length;j++){f[j].hidden=j!=k;if(t[j])t[j].hidden=j!=k;}"
)


def explore(
    draw: Callable[..., Any],
    *,
    text: Callable[..., str] | None = None,
    start: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **grid: Sequence[Any],
) -> Explorer:
    """Turn a drawing function into a figure with one slider per argument.

    Args:
        draw: Called as ``draw(**values)``; returns a matplotlib figure or axes, or draws into the current figure.
            Figures of one size do not make the page jump.
        text: Called as ``text(**values)``; says in words and numbers what the figure shows. Default the values.
        start: Values to start at; default the first of each.
        labels: Name of an argument to the label of its slider; default the name itself.
        **grid: Name of an argument to the values it takes.

    Returns:
        What a notebook cell shows; make it the last line of the cell.

    Raises:
        ValueError: If the grid is empty, ``start`` is not on it, a label belongs to no argument, or frames are to be
            written and are too many.
        TypeError: If ``draw`` draws no figure.

    Example:
        >>> explore(lambda n: None, n=[])
        Traceback (most recent call last):
        ...
        ValueError: grid: every slider needs at least one value, got {'n': 0}
    """
    counts = {name: len(values) for name, values in grid.items()}
    if not counts or 0 in counts.values():
        raise ValueError(f"grid: every slider needs at least one value, got {counts}")
    frames = math.prod(counts.values())
    if os.environ.get("ATTNBOOK_FRAMES") and frames > MOST_FRAMES:
        raise ValueError(
            f"grid: ATTNBOOK_FRAMES asks for all pictures, and at most {MOST_FRAMES} keep a page light; got {frames} "
            f"from {counts}"
        )
    first = {name: values[0] for name, values in grid.items()} | dict(start or {})
    for name, value in first.items():
        if value not in grid.get(name, ()):
            raise ValueError(f"start: {name} = {value!r} is not on the grid {dict(grid).get(name)}")
    for name in labels or {}:
        if name not in grid:
            raise ValueError(f"labels: {name!r} is not an argument of the grid, expected one of {', '.join(grid)}")
    named = {name: name for name in grid} | dict(labels or {})
    return Explorer(draw, text or partial(_values, named), first, named, dict(grid))


class Explorer:
    """A figure with sliders; made by :func:`explore`."""

    def __init__(
        self,
        draw: Callable[..., Any],
        text: Callable[..., str],
        start: Mapping[str, Any],
        labels: Mapping[str, str],
        grid: Mapping[str, Sequence[Any]],
    ) -> None:
        self.draw, self.text, self.start, self.labels, self.grid = draw, text, start, labels, grid
        self._first = self._picture(start)
        if folder := os.environ.get("ATTNBOOK_FRAMES"):
            self._keep_frames(Path(folder))

    def __repr__(self) -> str:
        ranges = "; ".join(f"{self.labels[name]}: {', '.join(map(str, v))}" for name, v in self.grid.items())
        return f"Slider over {ranges}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # Written by hand, because ipywidgets 7, which Colab has, makes no bundle.
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {VIEW: view, "text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        """The first picture and its words; the built book puts the frames of this key in their place."""
        picture, said = self._first
        return (
            f'<div class="attnbook-slider" data-frames="{self.key}"><div>{image(picture, said)}</div>'
            f'<p class="attnbook-slider-text"><span class="measured">{html.escape(said)}</span></p>'
            "<p>Run this cell to get its sliders.</p></div>"
        )

    @property
    def key(self) -> str:
        """Name of the frames, the same whenever the same functions are shown over the same grid."""
        functions = [_name(self.draw), _name(self.text)]
        shown = {name: [self.labels[name], *map(_label, values)] for name, values in self.grid.items()}
        said = json.dumps([functions, shown, {name: _label(value) for name, value in self.start.items()}])
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def frames_html(self) -> str:
        """Return the form of the built book: all pictures with their words, and sliders that choose among them."""
        sliders = "".join(self._slider_html(name, values) for name, values in self.grid.items())
        images, words = [], []
        for values in itertools.product(*self.grid.values()):
            point = dict(zip(self.grid, values, strict=True))
            picture, said = self._first if point == self.start else self._picture(point)
            hidden = "" if point == self.start else " hidden"
            images.append(image(picture, said, hidden))
            words.append(f'<span class="measured"{hidden}>{html.escape(said)}</span>')
        return (
            f'<div class="attnbook-slider">{sliders}<div>{"".join(images)}</div>'
            f'<p class="attnbook-slider-text" aria-live="polite">{"".join(words)}</p></div>'
        )

    @cached_property
    def widget(self) -> Any:
        """The live form, whose sliders call ``draw`` and ``text`` again through the kernel."""
        import ipywidgets as w

        # HTML, not an Image, which knows no text for screen readers; decoded in step, so that nothing flickers.
        shown = w.HTML(value=_live(*self._first))
        sliders = {
            name: w.SelectionSlider(
                options=[(_label(v), v) for v in values],
                value=self.start[name],
                description=self.labels[name],
                style={"description_width": "initial"},
                layout=w.Layout(width="32em", max_width="100%"),
            )
            for name, values in self.grid.items()
        }

        def redraw(_: object) -> None:
            try:
                shown.value = _live(*self._picture({name: slider.value for name, slider in sliders.items()}))
            except Exception as error:  # whatever it is: the old picture would be false under the new values
                shown.value = _alert("".join(traceback.format_exception_only(error)).strip())

        for slider in sliders.values():
            slider.observe(redraw, "value")
        return w.VBox([*sliders.values(), shown])

    def _slider_html(self, name: str, values: Sequence[Any]) -> str:
        options = [_label(v) for v in values]
        at = list(values).index(self.start[name])
        stored = html.escape(json.dumps(options), quote=True)
        return (
            f"<label>{html.escape(self.labels[name])} "
            f'<input type="range" min="0" max="{len(options) - 1}" value="{at}" data-values="{stored}" '
            f'aria-valuetext="{html.escape(options[at])}" oninput="{html.escape(MOVE, quote=True)}">'
            f"<output>{html.escape(options[at])}</output></label>"
        )

    def _picture(self, point: Mapping[str, Any]) -> tuple[bytes, str]:
        import matplotlib.pyplot as plt

        before = plt.get_fignums()
        plt.figure()  # for what is drawn into the current figure, which may be one of the cell
        try:
            return figures.png(_figure(self.draw(**point)), dpi=FRAME_DPI, colors=FRAME_COLORS), self.text(**point)
        finally:
            for number in set(plt.get_fignums()).difference(before):
                plt.close(number)

    def _keep_frames(self, folder: Path) -> None:
        """Write the frames; the file appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{self.key}.{os.getpid()}.part"
        part.write_text(self.frames_html(), encoding="utf-8")
        part.replace(folder / f"{self.key}.html")


def image(picture: bytes, said: str, hidden: str = "") -> str:
    """Return a picture and what it says as one piece of HTML."""
    alt, data = html.escape(said, quote=True), base64.b64encode(picture).decode()
    return f'<img class="dark-light" alt="{alt}" src="data:image/png;base64,{data}"{hidden}>'


def _live(picture: bytes, said: str) -> str:
    """Picture and words of a widget; an alert that speaks politely, because one that is put in anew is read, too."""
    return image(picture, said).replace("<img ", '<img decoding="sync" style="max-width: 100%" ') + _alert(said)


def _alert(said: str) -> str:
    return f'<p role="alert" aria-live="polite">{html.escape(said)}</p>'


def _figure(drawn: Any) -> Figure:
    """Return the figure that was returned, or whose axes were; else the current one, if there is something in it."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    found = getattr(getattr(drawn, "figure", None), "figure", None)  # of a figure itself, too; axes may be in a part
    if isinstance(found, Figure):
        return found
    if not plt.gcf().get_axes():
        raise TypeError(
            "draw: expected a function that returns a figure or axes, or draws into the current figure (without "
            f"plt.show(), which takes it away), got {drawn!r} and an empty figure"
        )
    return plt.gcf()


def _values(labels: Mapping[str, str], **values: Any) -> str:
    return ", ".join(f"{labels[name]} = {_label(value)}" for name, value in values.items())


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return f"{function.__module__}.{function.__qualname__}"


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
