"""Pictures, tables and sliders over labelled data: what the figures of a chapter are drawn with.

::

    with style():
        figure, ax = plt.subplots()
        curves(ax, data.test_error, "step_size", hue="heads")   # a line for each number of heads, bands over seeds
        own_lines(ax, {"GELU": {0.5: 0.1, 2.0: 0.05}})          # a reader's own, on top
    show(figure, alt="More heads, larger errors.")

Lines are those that the data have: an entry that no one gave a look gets one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnbook.core.figures import INK, LOOKS, Look, band, legend_above, log_axis, show, style
from attnbook.core.results import plain
from attnbook.core.tables import Measured, Table, spread
from attnbook.core.widgets import explore
from attnbook.lab import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "INK",
    "LOOKS",
    "Look",
    "Measured",
    "Table",
    "band",
    "curves",
    "explore",
    "legend_above",
    "log_axis",
    "looks_of",
    "own_lines",
    "settings",
    "show",
    "show_source",
    "spread",
    "style",
]

COLORS = ("#0b5cad", "#c2410c", "#15803d", "#7c3aed", "#8a5a00", "#0d4849")
LINES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", "-.", (0, (5, 1)), ":", "--", (0, (1, 1)))
MARKERS = ("o", "^", "v", "D", "s", "x")
OWN = ("#7c3aed", "#8a5a00", "#15803d", "#b00020")  # colours of a reader's own lines
OWN_MARKERS = ("P", "X", "*", "p", "h")  # with the colours, twenty lines differ


def looks_of(entries: Iterable[Any], known: Mapping[Any, Look] | None = None, label: str = "{}") -> dict[Any, Look]:
    """Return a look for every entry: the one that is known, or a new one.

    Args:
        entries: Numbers or names.
        known: Looks of some of them; default none.
        label: What the legend says of the others, with ``{}`` for the entry; numbers are written as short as they go.

    Returns:
        Looks by entry, in their order. Six of the new ones differ; then they repeat.

    Example:
        >>> found = looks_of([1, 2.5], {1: Look("one", "black", "-", "o")}, "{} heads")
        >>> found[1].label, found[2.5].label
        ('one', '2.5 heads')
    """
    new = cycle(map(Look, repeat(""), COLORS, LINES, MARKERS))
    found = {}
    for entry in entries:
        text = label.format(entry if isinstance(entry, str) else f"{entry:g}")
        found[entry] = known[entry] if known and entry in known else replace(next(new), label=text)
    return found


def curves(
    axes: Axes,
    data: xr.DataArray,
    x: str,
    hue: str = "",
    known: Mapping[Any, Look] | None = None,
    label: str = "{}",
) -> None:
    """Draw medians over seeds as lines, one for each entry along a dimension, and ranges over seeds as bands.

    Args:
        axes: Where to draw.
        data: Values with dimensions ``seed`` (may be missing), ``x`` and, if given, ``hue``.
        x: The dimension along the horizontal axis.
        hue: The dimension with a line for each entry; default one line.
        known: Looks of some entries, by entry, as for :func:`looks_of`.
        label: What the legend says of the others; of the only line where there is no ``hue``.

    Raises:
        ValueError: If the values have other dimensions.
    """
    expected = {x, hue} - {""}
    if {*data.dims} - {"seed"} != expected:
        raise ValueError(f"data: expected the dimensions {sorted(expected)}, and seed, got {list(data.dims)}")
    one_each = data if "seed" in data.dims else data.expand_dims("seed")
    entries = one_each[hue].values.tolist() if hue else [""]
    for entry, look in looks_of(entries, known, label).items():
        line = one_each.sel({hue: entry}) if hue else one_each
        band(axes, line[x].values, line.transpose("seed", x).values, look)


def own_lines(axes: Axes, lines: Mapping[str, Mapping[float, float]] | None) -> None:
    """Draw lines of a reader's own, dotted and with crosses, beside those of the book.

    Args:
        axes: Where to draw.
        lines: By name, abscissa to value; None draws nothing.

    Raises:
        TypeError: If a line is no mapping.
    """
    for i, (name, line) in enumerate((lines or {}).items()):
        if not isinstance(line, Mapping):
            raise TypeError(f"yours: expected a dictionary of abscissa to value for {name!r}, got {line!r}")
        look = {"color": OWN[i % len(OWN)], "marker": OWN_MARKERS[i % len(OWN_MARKERS)], "linestyle": ":"}
        axes.plot(list(line), list(line.values()), label=f"yours: {name}", **look)


def settings(experiment: Experiment, data: xr.Dataset | None = None) -> Table:
    """Return the settings of an experiment as a table: value, default and meaning, changed ones marked.

    Args:
        experiment: Which one.
        data: A run of it, whose settings are shown; default those of the book's size.

    Returns:
        A table with a row for each setting.
    """
    book = plain(experiment.settings())
    used = data.attrs["settings"] if data is not None else book
    rows = []
    for name, meaning in experiment.meanings().items():
        changed = "changed" if used[name] != book[name] else ""
        rows.append([name, _short(used[name]), changed, _short(book[name]), meaning])
    caption = f"{experiment.id}: settings of this run, and the book's."
    return Table(["setting", "value", "", "default", "meaning"], rows, caption)


def show_source(experiment: Experiment) -> None:
    """Print the function that an experiment is.

    Args:
        experiment: Which one.
    """
    print(inspect.getsource(experiment.simulate))


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
