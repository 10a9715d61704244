"""What a reader finds when the built book is opened in a browser, with the network off."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import launching
import pytest
import yaml
from chromium import barriers
from content_security import POLICY

import attnbook

ROOT = Path(__file__).resolve().parents[2]
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


def toc_pages() -> list[str]:
    """Names of all pages, as the table of contents gives them."""

    def files(entry: dict) -> list[str]:
        below = [inner for key in ("chapters", "sections") for inner in entry.get(key, [])]
        return ([entry["file"]] if "file" in entry else []) + [name for inner in below for name in files(inner)]

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(name for part in toc["parts"] for name in files(part))]


pytestmark = pytest.mark.slow
PAGES = toc_pages()
ONE_OF_EACH_KIND = {
    "intro",
    "chapters/how_to_read",
    "chapters/notation",
    "chapters/mirror_descent/index",
    "chapters/mirror_descent/token_selection",
    "reference/connections",
    "reference/gallery",
    "reference/glossary",
    "reference/read_with_care",
}
"""Pages that axe-core looks at in every run of the tests."""


@dataclass
class Opened:
    """A page of the book that is open in the browser, wide and dark, and what it has shown until then.

    Attributes:
        name: Its name in the table of contents.
        page: The page; each formula outside its sliders is an ``x`` by now: no formula is asked for any more, and four
            fifths of all elements, which would be styled and placed again with every change, are within formulas.
        problems: Foreign and failed requests, messages and errors on the console.
        untypeset: Formulas that are left as source text or shown as an error.
        pushed: Claims that are wider than their cards.
        phone: How wide the page is on a phone.
        faint: For each theme, text that is hard to tell from what lies behind it.
    """

    name: str
    page: Any
    problems: list[str]
    untypeset: list[str]
    pushed: list[str]
    phone: int
    faint: dict[str, list[str]]


@pytest.fixture(scope="module", params=PAGES)
def opened(request: pytest.FixtureRequest, address: str, tab: Any) -> Opened:
    """Each page, served and opened once for all tests that look at it."""
    page = tab.page
    tab.turn_to(f"{address}{request.param}.html")
    untypeset, pushed = page.evaluate(UNTYPESET), page.evaluate(PUSHED)
    page.set_viewport_size(PHONE)
    phone = page.evaluate(WITHOUT_FORMULAS)
    page.set_viewport_size(WIDE)
    faint = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.locator(f"html[data-theme={theme}]").wait_for(timeout=5_000)
        faint[theme] = page.evaluate(FAINT_TEXT)
    return Opened(request.param, page, tab.problems, untypeset, pushed, phone, faint)


class Parsed(HTMLParser):
    """The links, anchors and pictures of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.images: list[dict[str, str | None]] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element is or leads to."""
        found = dict(attrs)
        self.anchors.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        if tag == "img":
            self.images.append(found)


parsed = functools.cache(Parsed)


def test_page_loads_without_network_and_errors(opened: Opened) -> None:
    """Every page loads without failed or foreign requests and without errors on the console."""
    assert opened.problems == []


@pytest.mark.parametrize("name", ["intro", "chapters/mirror_descent/token_selection", "reference/claims_multi_head"])
def test_page_opens_from_the_file_system(name: str, html: Path, visit: Callable) -> None:
    """A double click on a page is enough: no server, no network, no errors; one page of each depth and kind."""
    here = visit((html / f"{name}.html").as_uri())
    assert here.problems == []
    assert here.page.locator("article h1").count() == 1
    here.page.close()


def test_the_book_builds(html: Path) -> None:
    """Without a warning; the first of all tests (tests/conftest.py)."""
    assert (html / "index.html").is_file()


def test_pages_forbid_what_is_not_of_the_book(html: Path) -> None:
    """Each page has the policy before its first script, and the policy names no foreign source; index leads on only."""
    for file in html.rglob("*.html"):
        if "_static" in file.parts or file == html / "index.html":
            continue
        head = file.read_text(encoding="utf-8").split("<script", 1)[0]
        policies = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', head)
        assert policies == [POLICY], file
    sources = {word for rule in POLICY.split("; ") for word in rule.split()[1:]}
    assert sources <= {"'self'", "'none'", "'unsafe-inline'", "data:", "blob:", "file:"}


@pytest.mark.parametrize("served", [True, False])
def test_a_foreign_request_is_refused(served: bool, html: Path, address: str, visit: Callable) -> None:
    """The browser itself refuses pictures, scripts, styles and requests, from a server and from the file system."""
    here = visit(f"{address}intro.html" if served else (html / "intro.html").as_uri())
    assert here.problems == []
    assert here.page.evaluate(ASK_FOREIGN) == ["connect-src", "img-src", "script-src-elem", "style-src-elem"]
    here.page.close()


def test_only_pages_of_the_contents_are_built(html: Path) -> None:
    """Canary notebooks, drafts and readmes never become pages."""
    built = {file.relative_to(html).with_suffix("").as_posix() for file in html.rglob("*.html")}
    extra = {name for name in built if not name.startswith(("_static/", "_images/"))} - set(PAGES)
    assert extra <= {"index", "genindex", "genindex-claims", "genindex-package", "search", "py-modindex", "prf-prf"}
    assert set(PAGES) <= built


def test_every_internal_link_resolves(html: Path) -> None:
    """A link inside the book leads to a file that exists, and to an anchor that exists in it."""
    pages = {file: parsed(file) for file in html.rglob("*.html") if "_static" not in file.parts}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].anchors if target in pages else {unquote(parts.fragment)}
            if not target.is_file() or unquote(parts.fragment) not in anchors:
                broken.append(f"{file.relative_to(html)}: {link}")
    assert broken == []


def test_launch_buttons_are_those_of_the_settings(html: Path) -> None:
    """A chapter has one button per service; tests/test_notebooks.py opens the same addresses in the repository."""
    settings = launching.settings()
    services = ("colab_url", "binderhub_url", "jupyterhub_url")
    hosts = tuple(filter(None, map(settings["launch_buttons"].get, services)))
    for name in PAGES:
        links = {link for link in parsed(html / f"{name}.html").links if link.startswith(hosts)}
        chapter = (ROOT / f"{name}.ipynb").exists()
        assert links == (set(launching.addresses(settings, name).values()) if chapter else set()), name


def test_first_use_of_a_symbol_leads_to_its_meaning(html: Path, visit: Callable) -> None:
    """Once in a chapter, in running text, to the row of the page of notation that has the symbol."""
    page = visit((html / "chapters/mirror_descent/token_selection.html").as_uri(), formulas=False).page
    links = page.locator("a.symbol")
    shown = links.evaluate_all("all => all.map(a => a.title + a.textContent)")
    assert len(shown) == len(set(shown)) > 5
    assert page.locator("h1 a.symbol, h2 a.symbol, table a.symbol, a a.symbol").count() == 0
    score = page.locator("a.symbol[title^='score of token']")
    page.goto(page.url.rsplit("/", 1)[0] + "/" + score.get_attribute("href"))
    assert "score of token" in page.locator(":target").inner_text()
    page.close()


def test_pages_link_relatively(html: Path) -> None:
    """No link or picture starts at the root of a server, so the book works in any folder and without a server."""
    pages = {name: parsed(html / f"{name}.html") for name in PAGES}
    places = {name: [*page.links, *(i.get("src") or "" for i in page.images)] for name, page in pages.items()}
    assert [(name, place) for name, found in places.items() for place in found if place.startswith("/")] == []


def test_pages_are_small(html: Path) -> None:
    """A page, with the pictures inside it, is less than 3 MB."""
    assert [name for name in PAGES if (html / f"{name}.html").stat().st_size >= 3_000_000] == []


def test_every_picture_has_a_text(html: Path) -> None:
    """Who cannot see a picture reads what it shows."""
    pictures = [(name, image) for name in PAGES for image in parsed(html / f"{name}.html").images]
    assert [(name, image.get("src", "")[:80]) for name, image in pictures if not image.get("alt")] == []
    assert len(pictures) > len(PAGES)


def test_formulas_are_typeset(opened: Opened) -> None:
    """No formula is left as source text or shown as an error."""
    assert opened.untypeset == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_legible(opened: Opened, theme: str) -> None:
    """Text, links, code, claims and verdicts have a contrast of at least 4.5 in both themes."""
    assert opened.faint[theme] == []


def sliders_of(opened: Opened) -> list[Any]:
    """The sliders of a page, whose frames must have been drawn when its chapter ran."""
    if opened.page.locator(".attnbook-slider[data-frames]").count():
        say = pytest.fail if os.environ.get("ATTNBOOK_REQUIRE_BROWSER") == "1" else pytest.skip
        say("no frames: run `make book`, or the notebooks as `make test` does")
    return opened.page.locator(".attnbook-slider").all()


def test_sliders_move_by_keyboard(opened: Opened) -> None:
    """An arrow key changes the picture and the number beside it, on every slider that the chapter has stored."""
    sliders = sliders_of(opened)
    notebook = ROOT / f"{opened.name}.ipynb"
    stored = notebook.read_text(encoding="utf-8") if notebook.exists() else ""
    assert len(sliders) == stored.count('<div class=\\"attnbook-slider\\"')
    for slider in sliders:
        for handle in slider.locator("input[type=range]").all():
            before = slider.evaluate(SHOWN)
            at_end = handle.evaluate("e => Number(e.value) >= Number(e.max)")
            handle.press("ArrowLeft" if at_end else "ArrowRight")
            after = slider.evaluate(SHOWN)
            assert after["pictures"] != before["pictures"]
            assert after["words"] != before["words"]
            for key, value in (("Home", 0), ("End", int(handle.get_attribute("max") or 0))):
                handle.press(key)
                assert int(handle.input_value()) == value
                assert_consistent(slider.evaluate(SHOWN))


def test_a_foreign_request_would_be_noticed(address: str, visit: Callable) -> None:
    """The canary: nothing is reached outside, and the attempt is noted."""
    here = visit(f"{address}intro.html")
    here.page.evaluate(ASK_FOREIGN)
    assert "foreign request: https://example.org/a.png" in here.problems
    assert "failed: https://example.org/a.png" in here.problems
    here.page.close()


def test_sliders_move_by_pointer(opened: Opened) -> None:
    """A click or a touch at either end of a slider shows that end; a slider is as high as a finger needs."""
    for slider in sliders_of(opened):
        for handle in slider.locator("input[type=range]").all():
            box = handle.bounding_box()
            assert box is not None
            assert box["height"] >= 44
            for x, value in ((box["width"] - 2, int(handle.get_attribute("max") or 0)), (2, 0)):
                handle.click(position={"x": x, "y": box["height"] - 4})
                assert int(handle.input_value()) == value
                assert_consistent(slider.evaluate(SHOWN))


def assert_consistent(shown: dict[str, Any]) -> None:
    """One picture is shown, the one that the sliders spell, with its own words, and they are said aloud too."""
    number = 0
    for value, values in shown["at"]:
        number = number * len(values) + value
    assert shown["pictures"] == [number]
    assert shown["words"] == [number]
    assert shown["numbers"] == shown["said"] == [values[value] for value, values in shown["at"]]
    assert shown["alive"]
    assert all(shown["alts"])


def test_no_barrier_for_assistive_technology(opened: Opened) -> None:
    """The accessibility engine axe-core finds nothing serious; contrast, in both themes, has a test of its own."""
    if opened.name not in ONE_OF_EACH_KIND and not os.environ.get("ATTNBOOK_AXE"):
        pytest.skip("all pages take minutes: ATTNBOOK_AXE=1 asks them too")
    assert barriers(opened.page) == []


def test_verdicts_stand_beside_their_claims(opened: Opened) -> None:
    """A long formula scrolls by itself and does not push the verdict out of the card."""
    assert opened.pushed == []


def test_phone_needs_no_sideways_scrolling(opened: Opened) -> None:
    """At the width of a phone the page itself does not scroll sideways; wide tables scroll in their own box."""
    assert opened.phone <= PHONE["width"]


@pytest.mark.parametrize("name", ["chapters/multi_head/separation", "chapters/preconditioning/scaling_law"])
def test_exercises_and_equations_count_within_their_chapter(name: str, html: Path) -> None:
    """The text of a chapter names its equations by the same numbers."""
    text = (html / f"{name}.html").read_text(encoding="utf-8")
    equations = re.findall(r'class="eqno">\((\d+)\)', text)
    exercises = re.findall(r'class="caption-number">Exercise (\d+)', text)
    for found in (equations, exercises):
        assert found == [str(number) for number in range(1, len(found) + 1)] != []


def test_footer_says_version_licence_and_how_to_cite(html: Path) -> None:
    """On every page; source and issues only where the address is known."""
    for name in PAGES:
        footer = (html / f"{name}.html").read_text(encoding="utf-8").split('class="book-footer"')[1].split("</p>")[0]
        assert f"Version {attnbook.__version__}" in footer
        assert '#how-to-cite">' in footer
        assert "CC BY 4.0" in footer


def test_ledger_can_be_filtered(address: str, visit: Callable) -> None:
    """Source, verdict and text narrow the list; the count says how many claims are left; all of it by keyboard."""
    page = visit(f"{address}reference/claims_global_attention.html", formulas=False).page
    total = page.locator("section.claim").count()
    page.get_by_role("combobox", name="Whose", exact=True).select_option("paper")
    some = page.locator("section.claim:visible").count()
    assert 0 < some < total
    page.get_by_role("searchbox", name="Text", exact=True).press_sequentially("ga-tab1")
    few = page.locator("section.claim:visible").count()
    assert 0 < few < some
    assert page.locator(".claim-filter output").inner_text().startswith(f"{few} of {total} ")


# Asks for something foreign in four ways; the directives by which that was refused, in alphabetical order.
ASK_FOREIGN = """async () => {
  const refused = [], make = (kind, settings) => Object.assign(document.createElement(kind), settings);
  document.addEventListener('securitypolicyviolation', event => refused.push(event.effectiveDirective));
  document.head.append(make('script', {src: 'https://example.org/a.js'}), make('img', {src: 'https://example.org/a.png'}),
    make('link', {rel: 'stylesheet', href: 'https://example.org/a.css'}));
  await fetch('https://example.org/').catch(() => null);
  await new Promise(done => setTimeout(done, 300));
  return refused.sort();
}"""

# Formulas that are left as source or shown as an error. Asked of the page: a locator takes seconds for `:has`.
UNTYPESET = """() => [...document.querySelectorAll('.math:not(:has(mjx-container)), mjx-merror')]
  .map(e => e.textContent.slice(0, 80))"""
PUSHED = """() => [...document.querySelectorAll('.claim-card:has(.card-head)')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 80))"""

# The width that a page needs; then an `x` takes the place of each formula.
WITHOUT_FORMULAS = """() => {
  const wide = document.documentElement.scrollWidth;
  for (const e of document.querySelectorAll('mjx-container')) if (!e.closest('.attnbook-slider')) e.replaceWith('x');
  return wide;
}"""

# Of a slider: value and possible values of each handle, what is written beside it and said of it, which of the pictures
# and which of the texts is shown, whether the text is announced when it changes, and the texts of the pictures.
SHOWN = """box => {
  const handles = [...box.querySelectorAll('input[type=range]')], words = box.querySelector('.attnbook-slider-text');
  const seen = (inside, kind) => [...inside.querySelectorAll(kind)].flatMap((e, i) => e.checkVisibility() ? [i] : []);
  return {
    at: handles.map(e => [Number(e.value), JSON.parse(e.dataset.values)]),
    numbers: handles.map(e => e.parentElement.querySelector('output').textContent),
    said: handles.map(e => e.getAttribute('aria-valuetext')),
    pictures: seen(box, 'img'), words: seen(words, 'span'), alive: words.ariaLive === 'polite',
    alts: [...box.querySelectorAll('img')].map(e => e.alt.trim()),
  };
}"""

# Text whose contrast with what lies behind it is below 4.5 (3 for large text), one entry per kind of element.
FAINT_TEXT = """() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const pen = canvas.getContext('2d', {willReadFrequently: true});
  const colors = new Map(), backs = new Map();
  const known = (map, key, make) => { if (!map.has(key)) map.set(key, make()); return map.get(key); };
  const rgba = color => known(colors, color, () => {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].map(v => v / 255);
  });
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = e => !e ? [1, 1, 1, 1]
    : known(backs, e, () => over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement)));
  const light = c => c.slice(0, 3).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const found = {}, seen = new Set(), aside = 'mjx-container, .headerlink, svg, [hidden]';
  // Four fifths of all elements are within formulas: a walk that leaves these out takes a fraction of the time.
  const take = n => n.nodeType === 1 ? (n.matches(aside) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP)
    : n.data.trim() ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP;
  for (const part of document.querySelectorAll('.bd-article, .prev-next-area, .bd-sidebar a, .bd-toc a')) {
    const walk = document.createTreeWalker(part, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, take);
    while (!part.closest(aside) && walk.nextNode()) seen.add(walk.currentNode.parentElement);
  }
  for (const e of seen) {
    const style = getComputedStyle(e);
    if (style.visibility === 'hidden') continue;
    const back = behind(e), text = over(rgba(style.color), back);
    const [low, high] = [light(back), light(text)].sort((a, b) => a - b);
    const ratio = (high + .05) / (low + .05), large = parseFloat(style.fontSize) >= 24;
    const kind = `${e.tagName.toLowerCase()}.${e.className}`;
    const quote = e.textContent.trim().slice(0, 30);
    if (ratio < (large ? 3 : 4.5)) found[kind] ??= `${kind}: ${ratio.toFixed(2)} "${quote}"`;
  }
  return Object.values(found);
}"""
