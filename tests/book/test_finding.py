"""Finding things in the built book: search, index, gallery, connections, links to claims; and paper."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import three_indexes

pytestmark = pytest.mark.slow

QUERIES = {
    "GA-TAB1-headline": "reference/claims_global_attention.html#GA-TAB1-headline",
    "PC-F1": "reference/claims_preconditioning.html#PC-F1",
    "MH-L2.2": "reference/claims_multi_head.html#MH-L2.2",
    "one-point convexity": "reference/glossary.html#term-one-point-convexity",
    "neural tangent kernel": "reference/glossary.html#term-neural-tangent-kernel",
    "softmax gradient": "reference/glossary.html#term-softmax-gradient",
    "mirror map": "reference/glossary.html#term-mirror-map",
    "gamma_star": "chapters/notation.html#symbol-",
    "lambda_min": "chapters/notation.html#symbol-",
    "linear_margin": "reference/api_multi_head.html#attnbook.multi_head.oracle.linear_margin",
    "sample complexity": "chapters/global_attention/sample_complexity.html",
    "noisy MNIST": "chapters/global_attention/noisy_mnist.html",
    "token selection": "chapters/mirror_descent/token_selection.html",
    "self attention": "chapters/global_attention/self_attention.html",
    "mirror descent": "chapters/mirror_descent/mirror_descent.html",
    "population loss": "chapters/preconditioning/population_loss.html",
    "scaling law": "chapters/preconditioning/scaling_law.html",
    "one good step": "chapters/multi_head/one_good_step.html",
    "loss landscape": "chapters/global_attention/sharpness.html",
    "lazy training": "chapters/softmax_ntk/lazy_training.html",
}


QUESTIONS = {
    "how many heads should I use": "multi_head/how_many_heads",
    "when should I stop training": "softmax_ntk/diffusion",
    "is a padding mask needed": "global_attention/self_attention",
    "why does softmax saturate": "preconditioning/structure_aware_descent",
    "how much data do I need": "global_attention/sample_complexity",
}


# What stands first among the results of a query, asked as if the page had been opened with it.
FIRST = """query => {
  history.replaceState(null, '', '?q=' + encodeURIComponent(query));
  Search.performSearch(query);
  return Search.output.querySelector('li > a')?.getAttribute('href') ?? 'nothing';
}"""


@pytest.fixture(scope="module")
def first(address: str, tab: Any) -> Callable[[str], str]:
    """Call with a query to get the address of its first result; the index is loaded once."""
    here = f"{address}search.html"

    def found(query: str) -> str:
        if not tab.page.url.startswith(here):
            tab.turn_to(here)
            tab.page.wait_for_function("() => Search.hasIndex()")
        return tab.page.evaluate(FIRST, query)

    return found


@pytest.mark.parametrize(("query", "place"), QUERIES.items())
def test_search_puts_the_right_place_first(query: str, place: str, first: Callable[[str], str]) -> None:
    """Claims, words, symbols, functions and chapters are found by their names."""
    assert place in first(query)


def test_search_puts_the_right_chapter_first_for_what_students_type(first: Callable[[str], str]) -> None:
    """For at least 27 of 30 queries; the words of ``chapters/map.toml`` were chosen together with them."""
    queries = tomllib.loads((Path(__file__).parent / "queries.toml").read_text(encoding="utf-8"))
    found = {query: first(query) for query in queries}
    wrong = {
        query: found[query]
        for query, places in queries.items()
        if not any(f"chapters/{place}" in found[query] for place in places)
    }
    assert len(queries) == 30
    assert len(wrong) <= 3, wrong


@pytest.mark.parametrize(("question", "chapter"), QUESTIONS.items())
def test_questions_lead_to_the_chapter_that_answers_them(
    question: str, chapter: str, first: Callable[[str], str]
) -> None:
    """Whatever little words they are made of."""
    assert first(question) == f"chapters/{chapter}.html"


def test_results_have_excerpts_when_pages_are_opened_from_disk(html: Path, tab: Any) -> None:
    """Each that is no function says words of the query, or what stands at its anchor."""
    tab.turn_to(f"{(html / 'search.html').as_uri()}?q=mirror map")
    tab.page.wait_for_function("() => document.querySelector('.search-summary')?.innerText.includes('finished')")
    said = tab.page.eval_on_selector_all(
        "#search-results li:not(:has(> span))", "all => all.map(li => li.querySelector('p.context')?.innerText ?? '')"
    )
    assert len(said) > 5
    assert all("mirror" in text.lower() or "map" in text.lower() for text in said), said
    assert "\ue000" not in "".join(said)
    assert tab.problems == []


def test_word_of_the_glossary_follows_the_chapter_of_the_same_name(address: str, tab: Any) -> None:
    """A chapter that is named like a term does not hide it, and all chapters come before the package's reference.

    The results are those of the page that the form for searching opens.
    """
    page = tab.page
    tab.turn_to(f"{address}search.html?q=lazy training")
    page.wait_for_function("() => document.querySelector('.search-summary').innerText.includes('finished')")
    found = page.eval_on_selector_all("#search-results li > a", "all => all.map(a => a.getAttribute('href'))")
    assert "reference/glossary.html#term-lazy-training" in found[1]
    last_chapter = max(place for place, target in enumerate(found) if target.startswith("chapters/"))
    assert all(place > last_chapter for place, target in enumerate(found) if target.startswith("reference/api"))


def test_gallery_shows_all_figures_of_the_chapters(html: Path, address: str, visit: Callable) -> None:
    """Each figure of a chapter's page has its picture there, and each picture leads to one."""
    page = visit(f"{address}reference/gallery.html", formulas=False).page
    targets = page.eval_on_selector_all(".gallery-chapter a:has(img)", "all => all.map(a => a.getAttribute('href'))")
    figures = [
        f"../{file.relative_to(html).as_posix()}#{found}"
        for file in html.glob("chapters/*/*.html")
        for found in re.findall(r'<figure[^>]* id="([^"]+-figure-\d+)"', file.read_text(encoding="utf-8"))
    ]
    assert sorted(targets) == sorted(figures) != []
    page.goto(page.url.rsplit("/", 1)[0] + "/" + targets[1])
    assert page.evaluate("document.querySelector(':target').tagName") == "FIGURE"
    page.close()


def test_small_pictures_are_small(html: Path) -> None:
    """All of them together, with their page, weigh less than three megabytes."""
    files = [html / "reference" / "gallery.html", *(html / "_images" / "gallery").iterdir()]
    assert sum(file.stat().st_size for file in files) < 3_000_000


def test_chapter_says_what_it_needs_and_what_comes_next(address: str, visit: Callable) -> None:
    """Prerequisites and time below the title, results of other parts at the end."""
    page = visit(f"{address}chapters/mirror_descent/rates.html", formulas=False).page
    facts = page.locator("h1 + p.chapter-facts")
    assert "This page's code runs for about" in facts.inner_text()
    assert facts.locator("a").first.get_attribute("href") == "mirror_descent.html"
    assert page.locator(".chapter-next li a").count() >= 1
    page.close()


def ledger_page(address: str, visit: Callable, choice: str, *, formulas: bool = False) -> Any:
    """A page of the ledger, opened at an address with a choice or a claim."""
    return visit(f"{address}reference/claims_multi_head.html{choice}", formulas=formulas).page


def test_ledger_keeps_the_choice_in_the_address(address: str, visit: Callable) -> None:
    """What was chosen can be sent to somebody, and can be undone."""
    page = ledger_page(address, visit, "")
    page.get_by_role("combobox", name="Whose", exact=True).select_option("paper")
    shown = page.locator("section.claim:visible").count()
    other = ledger_page(address, visit, page.evaluate("location.hash"))
    assert other.locator("section.claim:visible").count() == shown
    page.get_by_role("button", name="Show all").press("Enter")
    page.wait_for_function("() => location.hash === ''")
    assert page.locator("section.claim:visible").count() > shown
    page.close()
    other.close()


def test_address_of_a_claim_opens_it(address: str, visit: Callable) -> None:
    """It is on the screen, with its rule open, and its link leads to the section that shows it."""
    page = ledger_page(address, visit, "#MH-L2.2", formulas=True)
    claim = page.locator("[id='MH-L2.2']")
    claim.locator("details[open]").wait_for(timeout=5_000)
    page.wait_for_timeout(1000)
    box = claim.bounding_box()
    assert 0 <= box["y"] < 600
    assert "one_good_step.html#" in claim.locator("details a").last.get_attribute("href")
    page.close()


def test_first_page_of_the_ledger_leads_an_address_of_a_claim_on(address: str, visit: Callable) -> None:
    """Links to claims that were made before each paper had a page of its own stay good."""
    page = visit(f"{address}reference/claims.html#MD-theorem", formulas=False).page
    page.wait_for_url("**/reference/claims_mirror_descent.html#MD-theorem")
    page.close()


def test_page_of_claims_answers_at_once(address: str, visit: Callable) -> None:
    """Formulas that are out of sight wait until they come into view."""
    page = ledger_page(address, visit, "", formulas=True)
    waiting = page.locator("section.claim mjx-lazy").count()
    assert waiting > page.locator("section.claim").count()
    last = page.locator("section.claim > p:not(.claim-head):has(mjx-lazy)").last.element_handle()
    last.scroll_into_view_if_needed()
    page.wait_for_function("statement => !statement.querySelector('mjx-lazy')", arg=last)
    page.close()


def test_three_indexes_share_out_words_claims_and_names(html: Path) -> None:
    """Each entry stands in the index of its kind, and each index leads to the others."""
    texts = {name: (html / f"{name}.html").read_text(encoding="utf-8") for name in three_indexes.PLACES}
    lists = {name: "".join(text.split('<ul class="index-list">')[1:]) for name, text in texts.items()}
    for name, word in (
        ("genindex", "mirror map"),
        ("genindex-claims", "MH-L2.2"),
        ("genindex-package", "linear_margin"),
    ):
        assert [other for other, text in lists.items() if f">{word}" in text] == [name]
        assert all(f'href="{other}.html"' in texts[name] for other in three_indexes.PLACES if other != name)


def test_pages_say_what_they_are_when_shared(html: Path) -> None:
    """Title, description and card."""
    text = (html / "chapters" / "mirror_descent" / "rates.html").read_text(encoding="utf-8")
    for name in ("og:title", "og:description", "og:image"):
        assert f'property="{name}"' in text
    assert (html / "_static" / "social_card.png").is_file()


def test_paper_shows_no_menus_and_loses_no_figure(address: str, visit: Callable) -> None:
    """Printed, a page is its text and pictures, at full width, dark on white."""
    page = visit(f"{address}chapters/mirror_descent/token_selection.html", formulas=False).page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".bd-sidebar-primary:visible, .bd-header-article:visible, .prev-next-area:visible").count() == 0
    assert page.locator("article .attnbook-figure img:visible").count() >= 3
    assert (
        page.evaluate("getComputedStyle(document.querySelector('article section > p:not([class])')).color")
        == "rgb(17, 17, 17)"
    )
    page.close()
