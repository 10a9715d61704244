"""The house style of all figures: legible on light and dark pages, in grey and without colour vision.

Every figure carries its own light background, every model keeps its colour, line and marker in all chapters, and no
figure is shown without an alt text that states the finding.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL.Image import Image

__all__ = ["LOOKS", "Look", "Picture", "band", "legend_above", "log_axis", "png", "show", "style"]

BACKGROUND = "#fbfaf7"
INK = "#1f2328"
OWN_ALT = "Your own picture."  # too short for a chapter, whose tests ask for a finding
DPI = 120
ALIKE = 8  # of 255: colours that differ by no more, in red, green and blue, may become one in a file


@dataclass(frozen=True)
class Look:
    """How one quantity looks in all chapters.

    Attributes:
        label: Its name in legends.
        color: Its colour; dark enough on the background, and each a different grey.
        line: Its line style: a name, or an offset and the lengths of dashes and gaps in points.
        marker: Its marker.
        hollow: Whether the marker is an empty outline, larger than others, for what may lie on top of another line.
    """

    label: str
    color: str
    line: str | tuple[int, tuple[int, ...]]
    marker: str
    hollow: bool = False

    def line_style(self) -> dict[str, Any]:
        """Return the keyword arguments for ``Axes.plot``."""
        found = {"color": self.color, "linestyle": self.line, "marker": self.marker, "label": self.label}
        return found | ({"markerfacecolor": "none", "markersize": 9} if self.hollow else {})


LOOKS: Mapping[str, Look] = {
    "baseline": Look("baseline", "#5b5f66", "--", "s"),
    "attention": Look("attention", "#0b5cad", "-", "o"),
    "l1_attention": Look("L1-attention", "#c2410c", "-.", "^"),
    "sum_to_one": Look("sum-to-one", "#7c3aed", ":", "D"),
    "oracle": Look("known mask", "#15803d", (0, (5, 1)), "v"),
    "paper": Look("the paper", "#111111", "none", "x"),
}


HOUSE = {
    "figure.figsize": (7.2, 3.8),
    "figure.facecolor": BACKGROUND,
    "axes.facecolor": BACKGROUND,
    "savefig.facecolor": BACKGROUND,
    "figure.constrained_layout.use": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#6b7280",
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d7d0",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 11.5,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "image.cmap": "cividis",
}


def style() -> AbstractContextManager[None]:
    """Return the context in which figures are made in house style, whatever the settings of Matplotlib outside it.

    Returns:
        A context manager for ``with style(): ...``.
    """
    import matplotlib.style

    _load_backend()
    return matplotlib.style.context(["default", HOUSE])


@cache
def _load_backend() -> None:
    """Load the backend that shows figures, once: in a context of settings its own would end with the context.

    Matplotlib loads it with the first figure, and the one for notebooks then switches on that plots are shown.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    plt.switch_backend(mpl.get_backend())


def band(axes: Axes, x: np.ndarray, samples: np.ndarray, look: Look) -> None:
    """Draw the median over seeds as a line and the range over seeds as a band.

    Args:
        axes: Where to draw.
        x: Abscissae, ``(points,)``.
        samples: Values, ``(seeds, points)``.
        look: How to draw it.

    Raises:
        ValueError: If the shapes do not fit.
    """
    x, samples = np.asarray(x), np.asarray(samples)
    if samples.ndim != 2 or samples.shape[1:] != x.shape:
        raise ValueError(f"samples: expected (seeds, {len(x)}), got {samples.shape}")
    axes.fill_between(x, samples.min(axis=0), samples.max(axis=0), color=look.color, alpha=0.18, linewidth=0)
    axes.plot(x, np.median(samples, axis=0), **look.line_style())


def log_axis(
    axes: Axes, numbers: Sequence[float] | np.ndarray, label: str = "", form: str = "g", **options: Any
) -> None:
    """Make the horizontal axis logarithmic, with a tick at each of these numbers and nowhere else.

    Args:
        axes: Which axes.
        numbers: Where the ticks are.
        label: What the axis shows; default nothing.
        form: Format of the numbers; commas become thin spaces. Default ``g``.
        **options: Looks of the ticks' labels, for ``Axes.set_xticks``.
    """
    axes.set(xscale="log", xlabel=label)
    axes.set_xticks(numbers, [f"{number:{form}}".replace(",", "\u2009") for number in numbers], **options)
    axes.minorticks_off()


def legend_above(axes: Axes, **options: Any) -> None:
    """Put the legend above the picture, whose panels or whose axes alone a narrow screen may have to scroll.

    Args:
        axes: Whose lines it names.
        **options: Its looks, for ``Figure.legend``.
    """
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", **options)


@dataclass(frozen=True)
class Picture:
    """A figure as it is stored in a notebook: a small PNG and its alt text.

    Attributes:
        data: The PNG file.
        alt: What the figure shows, stated as a finding.
        width: Width in CSS pixels; the file has 1.2 times as many.
    """

    data: bytes
    alt: str
    width: int

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_html_(self) -> str:
        source = base64.b64encode(self.data).decode()
        alt = html.escape(self.alt, quote=True)
        return (
            '<figure class="attnbook-figure"><img class="dark-light" '
            f'style="width:{self.width}px;max-width:100%;height:auto" alt="{alt}" '
            f'src="data:image/png;base64,{source}"></figure>'
        )


def show(figure: Figure, alt: str = OWN_ALT) -> Picture:
    """Turn a figure into what a notebook cell shows; close it, so that it is not shown twice.

    The figure itself stays as it was: it can be changed, saved and shown again.

    Args:
        figure: A matplotlib figure.
        alt: One or two sentences that state the finding to someone who cannot see it; chapters always give them.
            Default, for a picture of your own, that there is one.

    Returns:
        The picture; make it the last line of the cell.

    Raises:
        ValueError: If the alt text is empty.
    """
    if not alt.strip():
        raise ValueError("alt: every figure needs a text that states its finding, got an empty one")
    width = round(figure.get_figwidth() * 100)
    return Picture(png(figure), alt, width)


def png(figure: Figure, *, dpi: int = DPI, colors: int = 64) -> bytes:
    """Return a figure as a small PNG file and close it; the figure itself stays as it was.

    Args:
        figure: A matplotlib figure. What drawing it takes from settings is Matplotlib's default.
        dpi: Dots per inch; default 120, sharp at 720 pixels on most screens, and small.
        colors: Size of the palette; default 64, which keeps thin lines in their colours and files small.

    Returns:
        The file's bytes.
    """
    import matplotlib.pyplot as plt
    import matplotlib.style

    plt.close(figure)
    own_canvas, own_dpi = figure.canvas, figure.dpi
    canvas, small = _canvas(), io.BytesIO()
    idle, canvas.figure = canvas.figure, figure
    figure.set_canvas(canvas)
    try:
        figure.set_dpi(dpi)
        with matplotlib.style.context("default"):
            canvas.draw()
        flat = _with_palette(np.asarray(canvas.buffer_rgba())[..., :3], colors)
    finally:
        figure.set_dpi(own_dpi)
        figure.set_canvas(own_canvas)
        canvas.figure = idle
    flat.save(small, format="png", compress_level=8)  # level 9 takes three times as long for two parts in a hundred
    return small.getvalue()


def _with_palette(picture: np.ndarray, colors: int) -> Image:
    """Return a picture in its most frequent colours that are not alike; each pixel has the nearest of them.

    Palettes that share out colours by area, as Pillow's do, mix what is drawn on few pixels: a line would change its
    colour with the length of others.
    """
    from PIL import Image as images

    codes, place, counts = np.unique(picture @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True, return_counts=True)
    found = codes[:, None] >> np.array([16, 8, 0]) & 255
    chosen: list[np.ndarray] = []
    nearest, distance = np.zeros(len(codes), np.uint8), np.full(len(codes), 256)
    while len(chosen) < colors and distance.max() > ALIKE:
        chosen.append(found[np.where(distance > ALIKE, counts, 0).argmax()])
        off = abs(found - chosen[-1]).max(axis=1)
        nearest[off < distance] = len(chosen) - 1
        distance = np.minimum(distance, off)
    flat = images.fromarray(nearest[place].reshape(picture.shape[:2]))
    flat.putpalette(np.array(chosen, np.uint8).tobytes())
    return flat


@cache
def _canvas() -> FigureCanvasAgg:
    """Return one canvas for all figures: it remembers how large texts are, and draws once where savefig does twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure())
