"""Figures: legible for everyone, small, never without a text."""

import io
import itertools
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from kernels import in_a_kernel
from PIL import Image

from attnbook.core.figures import BACKGROUND, INK, LOOKS, Picture, band, log_axis, png, show, style

SAMPLES = np.random.default_rng(0).random((5, 7))


@pytest.fixture
def figure():
    with style():
        figure, axes = plt.subplots()
        for look in LOOKS.values():
            band(axes, np.arange(7), SAMPLES, look)
        axes.legend()
    yield figure
    plt.close(figure)


def curve(numbers):
    """A figure with texts, a formula and an axis of many ticks."""
    figure, axes = plt.subplots()
    axes.semilogy(numbers, label="$x^2$")
    axes.set(title="title", xlabel="steps")
    axes.legend()
    return figure


def luminance(color):
    """Relative luminance of WCAG 2."""
    channels = np.array(mpl.colors.to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("color", [INK, *(look.color for look in LOOKS.values())])
def test_every_colour_stands_out_from_the_background(color):
    """4.5 to 1 is what WCAG 2 asks for text."""
    assert contrast(color, BACKGROUND) >= 4.5


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(LOOKS.values(), 2)])
def test_no_two_quantities_need_colour_to_be_told_apart(one, other):
    assert one.marker != other.marker
    assert one.line != other.line
    assert one.label != other.label


@pytest.mark.parametrize("alt", ["", "   ", "\n"])
def test_a_figure_without_a_text_is_refused(alt, figure):
    with pytest.raises(ValueError, match="alt"):
        show(figure, alt)


def test_a_shown_figure_is_a_small_png_of_its_nominal_width_and_is_closed(figure):
    picture = show(figure, "Five lines cross.")
    assert picture.data.startswith(b"\x89PNG")
    assert len(picture.data) < 60_000
    assert picture.width == 720
    assert Image.open(io.BytesIO(picture.data)).size == (864, 456)
    assert not plt.fignum_exists(figure.number)


def test_few_colours_make_a_smaller_file(figure):
    small = png(figure, dpi=100, colors=8)
    image = Image.open(io.BytesIO(small))
    assert image.size == (720, 380)
    assert len(image.getcolors()) <= 8


@pytest.mark.parametrize("dpi", [100, 120])
def test_a_picture_is_what_matplotlib_saves(dpi):
    """Also of the second of two figures, which share their canvas."""
    with style():
        for numbers in SAMPLES[:2]:
            saved = io.BytesIO()
            curve(numbers).savefig(saved, dpi=dpi)
            flat = Image.open(saved).convert("RGB").quantize(16, dither=Image.Dither.NONE)
            picture = Image.open(io.BytesIO(png(curve(numbers), dpi=dpi, colors=16)))
            np.testing.assert_array_equal(picture.convert("RGB"), flat.convert("RGB"))


def test_a_shown_figure_stays_as_it_was(tmp_path):
    """Its file is what it was before, also after another one was shown; it can be changed and shown again."""

    def saved(figure):
        figure.savefig(tmp_path / "figure.png")
        return (tmp_path / "figure.png").read_bytes()

    with style():
        one, other, untouched = curve(SAMPLES[0]), curve(SAMPLES[1]), curve(SAMPLES[0])
    dpi, before = one.dpi, saved(untouched)
    picture = show(one, "one")
    assert show(other, "other").data != picture.data
    assert (one.canvas.figure, one.dpi) == (one, dpi)
    assert saved(one) == before
    assert show(one, "again").data == picture.data
    one.axes[0].set_title("changed")
    assert show(one, "changed").data not in (picture.data, show(other, "other").data)


def test_a_figure_that_cannot_be_drawn_stays_as_it_was(figure):
    dpi = figure.dpi
    figure.axes[0].set_title("$\\nothing{$")
    with pytest.raises(ValueError, match="nothing"):
        png(figure)
    assert (figure.canvas.figure, figure.dpi) == (figure, dpi)
    figure.axes[0].set_title("title")
    assert png(figure)


def test_a_figure_carries_its_own_background(figure):
    corner = Image.open(io.BytesIO(png(figure))).convert("RGB").getpixel((0, 0))
    assert np.abs(np.array(corner) / 255 - mpl.colors.to_rgb(BACKGROUND)).max() < 0.02


def test_text_of_a_picture_is_escaped_in_html_and_plain_in_text():
    picture = Picture(b"file", 'loss "a" < b & c', 720)
    (alt,) = re.findall(r'<img [^>]*?alt="([^"]*)"', picture._repr_html_())
    assert alt == "loss &quot;a&quot; &lt; b &amp; c"
    assert "data:image/png;base64,ZmlsZQ==" in picture._repr_html_()
    assert repr(picture) == 'Figure: loss "a" < b & c'


KERNEL = """
import matplotlib.pyplot as plt
from attnbook.core.figures import show, style
with style():
    figure, _ = plt.subplots()
show(figure, "An empty one.")
"""


def test_after_a_picture_of_the_book_a_plot_of_the_reader_is_shown():
    """In a kernel, whose backend shows what a cell draws; the first figure of all loads this backend."""
    first, *plots, interactive = in_a_kernel(
        KERNEL, "plt.plot([1, 2, 3]);", "plt.hist([1, 2, 2]);", "plt.isinteractive()"
    )
    assert "attnbook-figure" in first["text/html"]
    assert ["image/png" in plot for plot in plots] == [True, True]
    assert plots[0]["image/png"] != plots[1]["image/png"]
    assert interactive["text/plain"] == "True"


def test_pictures_are_the_same_whatever_the_settings_of_the_reader(tmp_path):
    """Also with TeX, which few have, and in fonts that nobody has; the settings outside are left alone."""

    def picture():
        with style():
            return png(curve(SAMPLES[0]))

    usual = picture()
    settings = "text.usetex: True\nfont.family: fantasy\nfont.sans-serif: No Such Font\nmathtext.fontset: stix\n"
    (tmp_path / "matplotlibrc").write_text(f"{settings}axes.facecolor: red\naxes.linewidth: 5\nagg.path.chunksize: 3\n")
    with mpl.rc_context(fname=tmp_path / "matplotlibrc"):
        before = dict(mpl.rcParams)
        assert picture() == usual
        assert dict(mpl.rcParams) == before


def test_style_ends_with_its_block():
    before = dict(mpl.rcParams)
    with style():
        assert mpl.rcParams["figure.facecolor"] == BACKGROUND
    assert dict(mpl.rcParams) == before


def test_a_band_is_the_median_and_the_range_over_seeds():
    figure, axes = plt.subplots()
    band(axes, np.arange(7), SAMPLES, LOOKS["attention"])
    (line,), (area,) = axes.lines, axes.collections
    heights = area.get_paths()[0].vertices[:, 1]
    plt.close(figure)
    np.testing.assert_array_equal(line.get_ydata(), np.median(SAMPLES, axis=0))
    assert line.get_label() == "attention"
    assert (heights.min(), heights.max()) == (SAMPLES.min(), SAMPLES.max())


@pytest.mark.parametrize("shape", [(7,), (7, 5), (5, 6), (5, 7, 1)])
def test_samples_that_do_not_fit_are_refused_with_both_shapes(shape):
    with pytest.raises(ValueError, match=rf"samples: expected \(seeds, 7\), got {re.escape(str(shape))}"):
        band(None, np.arange(7), np.zeros(shape), LOOKS["attention"])


def test_log_axis_names_these_numbers_and_no_other():
    _, axes = plt.subplots()
    log_axis(axes, (30, 1000), "samples", ",")
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "samples")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["30", "1\u2009000"]
    assert not len(axes.xaxis.get_minorticklocs())
    plt.close()
