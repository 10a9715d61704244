"""Sliders: one output that works with a kernel and without."""

import base64
import json
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest

from attnbook.core.widgets import MOST_FRAMES, VIEW, explore

GRID = {"n": [2, 3, 5], "width": [0.5, 0.25]}


def draw(n, width):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.bar(range(n), range(n), width=width)
    return figure


def words(n, width):
    return f'{n} bars < "{width}" wide'


@pytest.fixture(scope="module")
def explorer():
    return explore(draw, text=words, start={"width": 0.25, "n": 3}, labels={"n": "number & kind"}, **GRID)


class Elements(HTMLParser):
    """Lists (tag, attributes, text) of all elements."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data):
        """Add text to the last element."""
        self.found[-1][2].append(data)

    def __call__(self, tag):
        return [(attributes, "".join(text)) for name, attributes, text in self.found if name == tag]


@pytest.fixture
def page(explorer):
    return Elements(explorer._repr_html_())


def test_one_input_per_argument_with_all_values_at_the_start(page):
    sliders = [attributes for attributes, _ in page("input")]
    assert [json.loads(s["data-values"]) for s in sliders] == [["2", "3", "5"], ["0.5", "0.25"]]
    assert [(s["min"], s["max"], s["value"]) for s in sliders] == [("0", "2", "1"), ("0", "1", "1")]
    assert [s["aria-valuetext"] for s in sliders] == ["3", "0.25"]
    assert [text.strip() for _, text in page("label")] == ["number & kind", "width"]
    assert [text for _, text in page("output")] == ["3", "0.25"]


def test_one_picture_per_point_one_visible_each_with_its_words(page):
    """The visible one is that of the start: number 1 * 2 + 1."""
    pictures = [attributes for attributes, _ in page("img")]
    assert [p["alt"] for p in pictures] == [words(n, width) for n in GRID["n"] for width in GRID["width"]]
    assert [i for i, p in enumerate(pictures) if "hidden" not in p] == [3]
    assert len({p["src"] for p in pictures}) == 6
    said = page("span")
    assert [text for _, text in said] == [p["alt"] for p in pictures]
    assert [i for i, (attributes, _) in enumerate(said) if "hidden" not in attributes] == [3]


def test_the_page_asks_for_nothing_from_elsewhere(explorer, page):
    assert all(p["src"].startswith("data:image/png;base64,") for p, _ in page("img"))
    assert "http" not in explorer._repr_html_()
    assert len(explorer._repr_html_()) < 100_000


def test_one_output_carries_widget_page_and_text(explorer):
    bundle = explorer._repr_mimebundle_()
    assert bundle[VIEW] == {"version_major": 2, "version_minor": 0, "model_id": explorer.widget.model_id}
    assert bundle["text/html"] == explorer._repr_html_()
    assert bundle["text/plain"] == "Slider over number & kind: 2, 3, 5; width: 0.5, 0.25"


def test_drawing_twice_gives_the_same_output(explorer):
    again = explore(draw, text=words, start={"width": 0.25, "n": 3}, labels={"n": "number & kind"}, **GRID)
    assert again._repr_html_() == explorer._repr_html_()


def test_moving_a_slider_redraws_picture_and_text(explorer, page):
    number, width, picture, said = explorer.widget.children
    open_before = plt.get_fignums()
    pictures = [base64.b64decode(p["src"].split(",")[1]) for p, _ in page("img")]
    assert picture.value == pictures[3]
    number.value = 5
    assert (picture.value, said.value) == (pictures[5], "5 bars &lt; &quot;0.25&quot; wide")
    width.value = 0.5
    assert (picture.value, said.value) == (pictures[4], "5 bars &lt; &quot;0.5&quot; wide")
    assert plt.get_fignums() == open_before


def test_a_message_of_the_browser_computes_picture_and_words_anew():
    """With a kernel nothing comes from the store: ``draw`` and ``text`` are called with the values of all sliders."""
    asked = []

    def drawn(n, width):
        asked.append((n, width))
        return draw(n * scale, width)

    scale = 1
    explorer = explore(drawn, text=lambda n, width: f"{n * scale} bars", **GRID)
    number, width, picture, said = explorer.widget.children
    asked.clear()
    scale = 7
    number.set_state({"index": 2})  # what JupyterLab and Colab send when the handle is moved
    assert (asked, said.value, picture.tooltip) == ([(5, 0.5)], "35 bars", "35 bars")
    assert picture.value not in explorer.frames
    width.set_state({"index": 1})
    assert asked == [(5, 0.5), (5, 0.25)]


def test_live_sliders_and_their_picture_are_named():
    explorer = explore(draw, text=words, labels={"n": "number & kind"}, **GRID)
    number, width, picture, _ = explorer.widget.children
    assert (number.description, width.description) == ("number & kind", "width")
    assert (number._options_labels, width._options_labels) == (("2", "3", "5"), ("0.5", "0.25"))
    assert picture.tooltip == explorer.texts[explorer.first]


def test_it_starts_at_the_first_values_unless_told_otherwise():
    assert explore(draw, text=words, **GRID).first == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "grid: every slider needs"),
        ({"n": [], "width": [0.5]}, "grid: every slider needs at least one value, got {'n': 0, 'width': 1}"),
        ({"n": range(MOST_FRAMES // 2 + 1), "width": [0.5, 0.25]}, f"grid: at most {MOST_FRAMES} .*, got 82"),
        ({"n": range(10**6), "width": range(10**6)}, "grid: .*, got 1000000000000"),
        ({**GRID, "start": {"n": 7}}, "start: n = 7 is not on the grid"),
        ({**GRID, "start": {"m": 2}}, "start: m = 2"),
        ({**GRID, "labels": {"m": "number"}}, "labels: 'm'"),
    ],
)
def test_an_impossible_grid_is_refused_before_anything_is_drawn(options, message):
    with pytest.raises(ValueError, match=message):
        explore(None, text=None, **options)
