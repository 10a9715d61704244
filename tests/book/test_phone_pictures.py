"""On a phone the panels of pictures stand below each other, and their text has at least 11 pixels."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from chromium import barriers
from phone_pictures import PICTURE, smallest_text

from attnbook.core.figures import legend_above, png, style

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
PHONE = {"width": 390, "height": 844}
ONE_OF_EACH_PART = [
    "global_attention/sample_complexity",
    "implicit_bias/max_margin_direction",
    "mirror_descent/token_selection",
    "multi_head/one_good_step",
    "preconditioning/structure_aware_descent",
    "softmax_ntk/softmax_network",
]
BOXES = ".attnbook-figure, .attnbook-slider > div"

# Of each picture: how large its parts are on the screen, over their size on a desktop; where each begins and ends.
SHOWN = """boxes => [...document.querySelectorAll(boxes)].map(box => {
  const image = box.querySelector('img:not([hidden])');
  const unit = image.naturalWidth / (parseFloat(image.style.width) || image.naturalWidth);
  const all = [...box.querySelectorAll('canvas, img')].map(e => ({e, at: e.getBoundingClientRect()}));
  const parts = all.filter(({at}) => at.width > 1);
  return {
    scales: parts.map(({e, at}) => at.width / ((e.naturalWidth || e.width) / unit)),
    tops: parts.map(({at}) => at.top), bottoms: parts.map(({at}) => at.bottom),
    lost: parts.filter(({e, at}) => at.right > innerWidth && !e.closest('[tabindex]')).length,
  };
})"""
STACKED = "boxes => [...document.querySelectorAll(boxes)].every(e => e.matches('.attnbook-stacked'))"
OTHER = "([slider, before]) => slider.querySelector('canvas').toDataURL() !== before"


def on_a_phone(tab: Any, url: str) -> Any:
    """Open a page in a window that small, and wait for its pictures."""
    tab.turn_to(url, PHONE)
    tab.page.wait_for_function(STACKED, arg=BOXES)
    assert tab.problems == []
    return tab.page


@pytest.fixture(params=ONE_OF_EACH_PART)
def chapter(request: pytest.FixtureRequest, address: str, tab: Any) -> tuple[str, Any]:
    """Name and page of a chapter on a phone."""
    name = f"chapters/{request.param}"
    return name, on_a_phone(tab, f"{address}{name}.html")


def test_text_of_pictures_has_eleven_pixels(chapter: tuple[str, Any]) -> None:
    """The smallest of the chapter, as large as each picture shows it; what is too wide scrolls, also by keyboard."""
    name, page = chapter
    shown = page.evaluate(SHOWN, BOXES)
    pixels = smallest_text(ROOT / "attnbook", name) * 100 / 72
    assert min(scale for picture in shown for scale in picture["scales"]) * pixels >= 10.99
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert [picture["lost"] for picture in shown] == [0] * len(shown)
    assert any(max(picture["tops"]) >= min(picture["bottoms"]) for picture in shown), "no picture is stacked"
    assert barriers(page) == []


def test_a_slider_moves_the_panels(address: str, tab: Any) -> None:
    """By keyboard, and the picture that is read out is that of the panels."""
    page = on_a_phone(tab, f"{address}chapters/softmax_ntk/diffusion.html")
    slider = page.locator(".attnbook-slider").first
    before = slider.evaluate("e => e.querySelector('canvas').toDataURL()")
    handle = slider.locator("input").first
    handle.press("ArrowLeft" if handle.evaluate("e => e.value === e.max") else "ArrowRight")
    page.wait_for_function(OTHER, arg=[slider.element_handle(), before])
    assert slider.locator("img:not([hidden])").get_attribute("alt") == slider.locator("p span:visible").inner_text()


def test_a_desktop_and_paper_show_the_pictures_themselves(address: str, tab: Any) -> None:
    """Also after the window was small, and printed from a phone."""
    page = on_a_phone(tab, f"{address}chapters/mirror_descent/rates.html")
    panels = page.locator(".attnbook-panels:visible")
    widths = "all => Math.min(...all.map(e => e.getBoundingClientRect().width))"
    page.emulate_media(media="print")
    assert panels.count() == 0
    assert page.eval_on_selector_all(".attnbook-figure img", widths) > 200
    page.emulate_media(media="screen")
    assert panels.count() > 0
    page.set_viewport_size({"width": 1280, "height": 900})
    assert panels.count() == 0
    assert page.eval_on_selector_all(".attnbook-figure img", widths) > 500


def test_without_scripts_pictures_keep_their_size_and_scroll(html: Path, browser: Any) -> None:
    """In their own box: the page itself does not scroll sideways."""
    context = browser.new_context(java_script_enabled=False, viewport=PHONE)
    page = context.new_page()
    page.goto((html / "chapters/mirror_descent/token_selection.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert min(scale for picture in page.evaluate(SHOWN, BOXES) for scale in picture["scales"]) >= 0.999
    context.close()


def drawn(draw: Callable[[Any], Any]) -> str:
    """A picture in house style, as the address of an image."""
    with style():
        return "data:image/png;base64," + base64.b64encode(png(draw(plt))).decode()


def three_with_one_axis(plt: Any) -> Any:
    """Three panels that share the numbers of their vertical axis, with a legend for all."""
    figure, axes = plt.subplots(1, 3, sharey=True)
    for ax in axes:
        ax.plot([1, 2, 3], label="a curve")
        ax.set(xlabel="steps", title="panel")
    axes[0].set_ylabel("loss")
    figure.legend(handles=axes[0].lines, loc="outside upper center")
    return figure


def one_below_its_legend(plt: Any) -> Any:
    """A single panel with a title, and above it a legend of three entries in two rows."""
    figure, ax = plt.subplots()
    for name in ("a curve", "another curve", "a third one"):
        ax.plot([1, 2, 3], label=name)
    ax.set(xlabel="steps", title="panel", ylabel="loss")
    legend_above(ax, ncols=2, fontsize=9)
    return figure


def one_alone(plt: Any) -> Any:
    """A single panel."""
    figure, ax = plt.subplots()
    ax.plot([1, 2, 3])
    return figure


def test_panels_are_found_in_a_picture(html: Path, browser: Any) -> None:
    """Those of a row become pieces of one width, because each gets the shared numbers; a single one stays whole.

    But each entry of a legend above it is a piece, so that none is out of sight where the panel is too wide.
    """
    page = browser.new_page()
    page.add_script_tag(path=html / "_static" / "panels.js")
    found = [page.evaluate(CUT, drawn(draw)) for draw in (three_with_one_axis, one_alone, one_below_its_legend)]
    assert found[1] is None
    assert [len(row) for row in found[2]] == [2, 1, 1]
    legend, panels = found[0]
    assert len(legend) == 1
    assert len(panels) == 3
    assert max(panels) - min(panels) < 6
    page.close()


# The widths of the pieces of a picture, row by row.
CUT = """async source => {
  const image = Object.assign(new Image(), {src: source});
  await image.decode();
  const {width, height} = image, canvas = Object.assign(document.createElement('canvas'), {width, height});
  const pen = canvas.getContext('2d');
  pen.drawImage(image, 0, 0);
  const rows = attnbookPanels.cut(pen.getImageData(0, 0, width, height), 1.2);
  const ends = piece => piece.flatMap(({x, right = 0}) => x.map(at => at + right));
  return rows && rows.map(row => row.map(piece => Math.max(...ends(piece)) - Math.min(...ends(piece))));
}"""


def test_sizes_of_text_are_written_where_they_are_read() -> None:
    """As numbers after ``fontsize``: what else would set them is not used outside the house style."""
    for file in (ROOT / "attnbook").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.parent.name != "core":
            assert not re.search(r"labelsize|titlesize|set_fontsize|font\.size|fontsize=['\"]", text), file
            assert set(re.findall(r"fontsize=([a-z]\w*)", text)) <= {"fontsize"}, file


def test_legends_of_wide_pictures_are_in_sight() -> None:
    """In a figure of one panel they are above or beside it, or begin at its left: its right may have to be scrolled."""
    for file in [*(ROOT / "attnbook").glob("*/*/figures.py"), *(ROOT / "chapters").glob("*/*.py")]:
        for function in re.findall(r"\ndef .*?(?=\n\n\n|$)", file.read_text(encoding="utf-8"), re.DOTALL):
            if re.search(r"figure, ax = plt\.subplots\((?!\d)", function):
                for legend in re.findall(r"\bax\.legend\(.*", function):
                    assert re.search(r'loc="\w+ left"', legend), f"{file}: {legend}"


def test_pages_with_pictures_load_the_script(html: Path) -> None:
    """And no other page."""
    for file in html.glob("chapters/*/*.html"):
        text = file.read_text(encoding="utf-8")
        assert ("panels.js" in text) == bool(PICTURE.search(text)), file
