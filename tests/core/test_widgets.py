"""Sliders: one output that works with a kernel and without."""

import json
import re
from functools import partial
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
    return Elements(explorer.frames_html())


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
    assert "http" not in explorer.frames_html()
    assert len(explorer.frames_html()) < 100_000


def test_without_a_kernel_a_notebook_shows_one_picture_with_its_words(explorer, page):
    fallback = Elements(explorer._repr_html_())
    ((picture, _),) = fallback("img")
    assert picture == {name: value for name, value in page("img")[3][0].items() if name != "hidden"}
    assert [text for _, text in fallback("span")] == [words(3, 0.25)]
    assert fallback("input") == []


def test_frames_are_drawn_and_kept_only_where_a_folder_is_named(monkeypatch, tmp_path):
    asked = []

    def drawn(n, width):
        asked.append((n, width))
        return draw(n, width)

    explore(drawn, text=words, **GRID)
    assert asked == [(2, 0.5)]
    monkeypatch.setenv("ATTNBOOK_FRAMES", str(tmp_path / "frames"))
    explorer = explore(drawn, text=words, **GRID)
    assert len(asked) == 1 + 6  # the first picture is one of them
    (file,) = (tmp_path / "frames").iterdir()
    assert file.name == f"{explorer.key}.html"
    assert f'data-frames="{explorer.key}"' in explorer._repr_html_()
    assert file.read_text(encoding="utf-8") == explorer.frames_html()


def test_frames_have_another_key_for_another_function_grid_label_or_start():
    def other(n, width):
        return draw(n, width)

    variants = [
        {"draw": draw},
        {"draw": other},
        {"draw": partial(draw)},
        {"draw": draw, "labels": {"n": "number"}},
        {"draw": draw, "start": {"n": 3}},
        {"draw": draw, "width": [0.5, 0.2]},
    ]
    keys = [explore(v.pop("draw"), text=words, **(GRID | v)).key for v in variants]
    assert keys[2] == keys[0]
    assert len(set(keys)) == len(keys) - 1


def test_one_output_carries_widget_page_and_text(explorer):
    bundle = explorer._repr_mimebundle_()
    assert bundle[VIEW] == {"version_major": 2, "version_minor": 0, "model_id": explorer.widget.model_id}
    assert bundle["text/html"] == explorer._repr_html_()
    assert bundle["text/plain"] == "Slider over number & kind: 2, 3, 5; width: 0.5, 0.25"


def test_drawing_twice_gives_the_same_output(explorer):
    again = explore(draw, text=words, start={"width": 0.25, "n": 3}, labels={"n": "number & kind"}, **GRID)
    assert again._repr_html_() == explorer._repr_html_()


def test_moving_a_slider_redraws_picture_and_text(explorer, page):
    number, width, live = explorer.widget.children
    open_before = plt.get_fignums()
    pictures = [p["src"] for p, _ in page("img")]

    def shown():
        found = Elements(live.value)
        return found("img")[0][0]["src"], found("p")[0][1]

    assert shown() == (pictures[3], words(3, 0.25))
    number.value = 5
    assert shown() == (pictures[5], '5 bars < "0.25" wide')
    width.value = 0.5
    assert shown() == (pictures[4], '5 bars < "0.5" wide')
    assert plt.get_fignums() == open_before


def test_a_message_of_the_browser_computes_picture_and_words_anew():
    """With a kernel nothing comes from the store: ``draw`` and ``text`` are called with the values of all sliders."""
    asked = []

    def drawn(n, width):
        asked.append((n, width))
        return draw(n * scale, width)

    scale = 1
    explorer = explore(drawn, text=lambda n, width: f"{n * scale} bars", **GRID)
    number, width, live = explorer.widget.children
    asked.clear()
    scale = 7
    number.set_state({"index": 2})  # what JupyterLab and Colab send when the handle is moved
    assert asked == [(5, 0.5)]
    assert Elements(live.value)("p")[0][1] == "35 bars"
    width.set_state({"index": 1})
    assert asked == [(5, 0.5), (5, 0.25)]


def test_live_sliders_and_their_picture_are_named():
    explorer = explore(draw, text=words, labels={"n": "number & kind"}, **GRID)
    number, width, live = explorer.widget.children
    assert (number.description, width.description) == ("number & kind", "width")
    assert (number._options_labels, width._options_labels) == (("2", "3", "5"), ("0.5", "0.25"))
    found = Elements(live.value)
    assert found("img")[0][0]["alt"] == words(2, 0.5)
    assert found("p")[0][0]["aria-live"] == "polite"


def test_it_starts_at_the_first_values_unless_told_otherwise():
    number, width, _ = explore(draw, text=words, **GRID).widget.children
    assert (number.value, width.value) == (2, 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "grid: every slider needs"),
        ({"n": [], "width": [0.5]}, "grid: every slider needs at least one value, got {'n': 0, 'width': 1}"),
        ({**GRID, "start": {"n": 7}}, "start: n = 7 is not on the grid"),
        ({**GRID, "start": {"m": 2}}, "start: m = 2"),
        ({**GRID, "labels": {"m": "number"}}, "labels: 'm'"),
    ],
)
def test_an_impossible_grid_is_refused_before_anything_is_drawn(options, message):
    with pytest.raises(ValueError, match=message):
        explore(None, **options)


def test_only_pictures_that_are_written_can_be_too_many(monkeypatch, tmp_path):
    """A slider that draws live draws one at a time; a page holds all of them."""
    many = {"n": range(MOST_FRAMES // 2 + 1), "width": [0.5, 0.25]}
    assert len(explore(draw, **many).widget.children[0].options) == MOST_FRAMES // 2 + 1
    monkeypatch.setenv("ATTNBOOK_FRAMES", str(tmp_path))
    with pytest.raises(ValueError, match=rf"grid: ATTNBOOK_FRAMES .* at most {MOST_FRAMES} .* got 82 from"):
        explore(None, **many)
    assert not list(tmp_path.iterdir())


def test_without_words_it_says_the_values_by_their_labels():
    explorer = explore(draw, labels={"n": "number & kind"}, **GRID)
    assert Elements(explorer._repr_html_())("img")[0][0]["alt"] == "number & kind = 2, width = 0.5"
    assert explorer.key != explore(draw, text=words, labels={"n": "number & kind"}, **GRID).key


def test_a_drawing_that_fails_shows_its_error_in_place_of_the_old_picture():
    def failing(n, width):
        figure = draw(n, width)
        if n == 5:
            raise ValueError("no <5> here")
        return figure

    explorer = explore(failing, text=words, **GRID)
    number, _, live = explorer.widget.children
    before, open_before = live.value, plt.get_fignums()
    number.set_state({"index": 2})
    assert Elements(live.value)("img") == []
    assert [text for _, text in Elements(live.value)("p")] == ["ValueError: no <5> here"]
    assert plt.get_fignums() == open_before  # what was half drawn is not shown elsewhere
    number.set_state({"index": 0})
    assert live.value == before


def test_words_that_fail_show_their_error():
    explorer = explore(draw, text=lambda n, width: f"{1 / (n - 3)}", **GRID)
    number, _, live = explorer.widget.children
    number.set_state({"index": 1})
    assert [text for _, text in Elements(live.value)("p")] == ["ZeroDivisionError: division by zero"]


def test_a_first_picture_that_fails_is_an_error_of_the_cell():
    with pytest.raises(ZeroDivisionError):
        explore(lambda n: 1 / n, n=[0])


def bars(n, into=plt):
    return into.bar(range(n), range(n))


def axes_of_bars(n):
    _, axes = plt.subplots()
    bars(n, axes)
    return axes


def many_axes(n):
    _, axes = plt.subplots(1, 2)
    bars(n, axes[1])
    return axes


def axes_in_a_part(n):
    axes = plt.figure().subfigures(1, 2)[0].subplots()
    bars(n, axes)
    return axes


@pytest.mark.parametrize("drawn", [bars, axes_of_bars, many_axes, axes_in_a_part, lambda n: plt.hist([n])])
def test_a_function_may_return_axes_or_draw_into_the_current_figure(drawn):
    """Which is not one that the cell has open, and every picture begins anew."""
    open_before, axes = plt.figure(), plt.gcf().subplots()
    found = Elements(explore(drawn, n=[2, 3]).frames_html())("img")
    again = Elements(explore(drawn, n=[3, 2]).frames_html())("img")
    assert [p["src"] for p, _ in found] == [p["src"] for p, _ in reversed(again)]
    assert found[0][0]["src"] != found[1][0]["src"]
    assert plt.gcf() is open_before
    assert not axes.has_data()


@pytest.mark.parametrize("returned", [None, "a picture", 3, [1, 2]])
def test_a_function_that_draws_nothing_is_refused(returned):
    open_before = plt.get_fignums()
    with pytest.raises(TypeError, match=rf"^draw: expected a function that .*, got {re.escape(repr(returned))} and"):
        explore(lambda n: returned, n=[1])
    assert plt.get_fignums() == open_before
