"""The two-hour way: short enough for two hours, and each step leads on to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import book_map
import pytest
import quick_lane
from chromium import settle

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
WAY = book_map.two_hours(ROOT)
CHAPTERS = book_map.read_map(ROOT)
END = "p.quick-onward"


def test_way_has_at_most_six_thousand_words_and_meets_every_part() -> None:
    """What stands above the first headings of its chapters."""
    total = sum(quick_lane.words(quick_lane.quick_text(ROOT / f"{CHAPTERS[name].page}.ipynb")) for name in WAY)
    assert 2_000 < total <= 6_000
    parts = {chapter.paper for chapter in CHAPTERS.values()} - {"implicit_bias"}  # a miniature, to copy from
    assert {CHAPTERS[name].paper for name in WAY} == parts


# Of a chapter only what is above the line that leads on is typeset and shown: the rest does not move it.
ABOVE_THE_END = f"""const rest = new CSSStyleSheet();
rest.replaceSync('{END} ~ * {{ display: none }}');
document.adoptedStyleSheets = [rest];
Object.defineProperty(window, 'MathJax', {{configurable: true, set(settings) {{
  delete window.MathJax;
  window.MathJax = {{...settings, startup: {{elements: [':has(~ {END})']}}}};
}}}});"""


def test_way_has_at_most_45_screens_and_leads_on(address: str, context: Any) -> None:
    """On a laptop, from the top of each chapter to the line that leads on; the last line leads to the summary."""
    screens, page = 0.0, context.new_page()
    page.set_viewport_size({"width": 1366, "height": 768})
    page.add_init_script(ABOVE_THE_END)
    page.goto(f"{address}chapters/{WAY[0]}.html#quick")
    for name, following in zip(WAY, [*WAY[1:], ""], strict=True):
        assert page.url.endswith(f"{name}.html#quick")
        screens += _bottom(page) / 768
        page.locator(f"{END} a").click()
        page.wait_for_url(f"**/{following}.html#quick" if following else "**/take_away.html")
    assert screens <= 45
    page.close()


def test_only_who_came_by_the_way_is_led_on(address: str, context: Any) -> None:
    page = context.new_page()
    page.goto(f"{address}chapters/{WAY[0]}.html")
    assert page.locator(END).count() == 1
    assert not page.locator(END).is_visible()
    page.close()


def _bottom(page: Any) -> float:
    """Return where the quick part of an open chapter ends, in pixels from the top of the page."""
    settle(page)
    assert page.evaluate(f"document.querySelector(':has(~ {END}) .math:not(:has(mjx-container))')") is None
    return page.evaluate(f"document.querySelector('{END}').getBoundingClientRect().bottom + window.scrollY")


def test_summary_has_two_lines_of_every_chapter(address: str, visit: Callable) -> None:
    """What to take away, with a link to the chapter; first those of the way."""
    page = visit(f"{address}reference/take_away.html", formulas=False).page
    links = page.eval_on_selector_all("article section section > p > a", "all => all.map(a => a.getAttribute('href'))")
    others = [name for name in CHAPTERS if name not in WAY]
    assert [link.removeprefix("../chapters/").split(".html")[0] for link in links] == WAY + others
    assert page.locator("article section section > ul > li").count() == quick_lane.LINES * len(CHAPTERS)
    page.close()
