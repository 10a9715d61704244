"""Sliders that move a figure: in JupyterLab and Colab through the kernel, in the built book without one.

One output carries two forms. The widget redraws through the kernel; the HTML holds all pictures, drawn beforehand,
and needs no kernel, no library and no network. The built book shows the HTML.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
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
    draw: Callable[..., Figure],
    *,
    text: Callable[..., str],
    start: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **grid: Sequence[Any],
) -> Explorer:
    """Turn a drawing function into a figure with one slider per argument.

    Args:
        draw: Called as ``draw(**values)``; returns a matplotlib figure, always of the same size.
        text: Called as ``text(**values)``; says in words and numbers what the figure shows.
        start: Values to start at; default the first of each.
        labels: Name of an argument to the label of its slider; default the name itself.
        **grid: Name of an argument to the values it takes.

    Returns:
        What a notebook cell shows; make it the last line of the cell.

    Raises:
        ValueError: If the grid is empty or too large, ``start`` is not on it, or a label belongs to no argument.

    Example:
        >>> explore(lambda n: None, text=str, n=[])
        Traceback (most recent call last):
        ...
        ValueError: grid: every slider needs at least one value, got {'n': 0}
    """
    counts = {name: len(values) for name, values in grid.items()}
    if not counts or 0 in counts.values():
        raise ValueError(f"grid: every slider needs at least one value, got {counts}")
    frames = math.prod(counts.values())
    if frames > MOST_FRAMES:
        raise ValueError(f"grid: at most {MOST_FRAMES} pictures keep a page light, got {frames} from {counts}")
    first = {name: values[0] for name, values in grid.items()} | dict(start or {})
    for name, value in first.items():
        if value not in grid.get(name, ()):
            raise ValueError(f"start: {name} = {value!r} is not on the grid {dict(grid).get(name)}")
    for name in labels or {}:
        if name not in grid:
            raise ValueError(f"labels: {name!r} is not an argument of the grid, expected one of {', '.join(grid)}")
    return Explorer(draw, text, first, {name: name for name in grid} | dict(labels or {}), dict(grid))


class Explorer:
    """A figure with sliders; made by :func:`explore`."""

    def __init__(
        self,
        draw: Callable[..., Figure],
        text: Callable[..., str],
        start: Mapping[str, Any],
        labels: Mapping[str, str],
        grid: Mapping[str, Sequence[Any]],
    ) -> None:
        self.draw, self.text, self.start, self.labels, self.grid = draw, text, start, labels, grid
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        self.texts = [text(**point) for point in points]
        self.frames = [self._png(point) for point in points]
        self.first = points.index(dict(start))

    def __repr__(self) -> str:
        ranges = "; ".join(f"{self.labels[name]}: {', '.join(map(str, v))}" for name, v in self.grid.items())
        return f"Slider over {ranges}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # Written by hand, because ipywidgets 7, which Colab has, makes no bundle.
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {VIEW: view, "text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        sliders = "".join(self._slider_html(name, values) for name, values in self.grid.items())
        images, words = [], []
        for i, (frame, words_of_frame) in enumerate(zip(self.frames, self.texts, strict=True)):
            hidden = "" if i == self.first else " hidden"
            alt, data = html.escape(words_of_frame, quote=True), base64.b64encode(frame).decode()
            images.append(f'<img class="dark-light" alt="{alt}" src="data:image/png;base64,{data}"{hidden}>')
            words.append(f'<span class="measured"{hidden}>{html.escape(words_of_frame)}</span>')
        return (
            f'<div class="attnbook-slider">{sliders}<div>{"".join(images)}</div>'
            f'<p class="attnbook-slider-text" aria-live="polite">{"".join(words)}</p></div>'
        )

    @cached_property
    def widget(self) -> Any:
        """The live form, whose sliders call ``draw`` again through the kernel."""
        import ipywidgets as w

        picture = w.Image(value=self.frames[self.first], format="png", layout=w.Layout(align_self="flex-start"))
        picture.tooltip = self.texts[self.first]  # what a screen reader says of the picture (ipywidgets 8)
        words = w.HTML(value=html.escape(self.texts[self.first]))
        sliders = {
            name: w.SelectionSlider(
                options=[(_label(v), v) for v in values],
                value=self.start[name],
                description=self.labels[name],
                style={"description_width": "initial"},
                layout=w.Layout(width="32em"),
            )
            for name, values in self.grid.items()
        }

        def redraw(_: object) -> None:
            point = {name: slider.value for name, slider in sliders.items()}
            said = self.text(**point)
            picture.value, picture.tooltip, words.value = self._png(point), said, html.escape(said)

        for slider in sliders.values():
            slider.observe(redraw, "value")
        return w.VBox([*sliders.values(), picture, words])

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

    def _png(self, point: Mapping[str, Any]) -> bytes:
        return figures.png(self.draw(**point), dpi=FRAME_DPI, colors=FRAME_COLORS)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"
