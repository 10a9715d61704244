"""What the pages of the book are made of besides notebooks: the map of chapters, lists, the directives' parts."""

import itertools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from attnbook import ledger
from attnbook.registry import experiments
from attnbook.rooms import rooms

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "_ext"), str(ROOT / "tools")]

pytest.importorskip("sphinx", reason="Sphinx is not installed")
import book_map  # noqa: E402  (its folder is on the path only now)
import chapters_page  # noqa: E402  (its folder is on the path only now)
import connections_svg  # noqa: E402  (its folder is on the path only now)
import costs_page  # noqa: E402  (its folder is on the path only now)
import figures_page  # noqa: E402  (its folder is on the path only now)
import one_page  # noqa: E402  (its folder is on the path only now)
import room_reference  # noqa: E402  (its folder is on the path only now)
import search_order  # noqa: E402  (its folder is on the path only now)
import social_card  # noqa: E402  (its folder is on the path only now)
import symbol_index  # noqa: E402  (its folder is on the path only now)
import symbol_links  # noqa: E402  (its folder is on the path only now)

CHAPTERS = book_map.read_map(ROOT)


def notebooks_of_the_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [
        section["file"].removeprefix("chapters/")
        for part in toc["parts"]
        for chapter in part["chapters"]
        for section in chapter.get("sections", [])
        if section["file"].startswith("chapters/")
    ]


def test_map_has_the_chapters_of_the_contents_in_their_order():
    assert list(CHAPTERS) == notebooks_of_the_contents()


def test_a_chapter_builds_on_earlier_chapters_of_its_part():
    """So that reading in the order of the book never needs something that comes later."""
    order = list(CHAPTERS)
    for chapter in CHAPTERS.values():
        for name in chapter.needs:
            assert CHAPTERS[name].paper == chapter.paper
            assert order.index(name) < order.index(chapter.name)


def test_next_results_are_chapters_of_other_parts():
    for chapter in CHAPTERS.values():
        for name, why in chapter.next:
            assert CHAPTERS[name].paper != chapter.paper
            assert why.endswith((".", "?"))


def test_every_chapter_leads_to_another_part():
    assert [c.name for c in CHAPTERS.values() if not c.next] == []


def test_every_stored_notebook_knows_its_time():
    for chapter in CHAPTERS.values():
        time = book_map.seconds(ROOT / f"{chapter.page}.ipynb")
        assert time is not None, f"{chapter.name} stores no times: run it with jupyter execute --inplace"
        assert time > 0


def test_time_is_from_the_first_start_to_the_last_end(tmp_path):
    def cell(start, end):
        times = {"iopub.execute_input": f"2026-01-01T00:00:{start}Z", "shell.execute_reply": f"2026-01-01T00:00:{end}Z"}
        return {"cell_type": "code", "metadata": {"execution": times}}

    notebook = tmp_path / "a.ipynb"
    notebook.write_text(json.dumps({"cells": [cell("03", "05"), {"cell_type": "markdown"}, cell("05", "16.5")]}))
    assert book_map.seconds(notebook) == 13.5
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "metadata": {}}]}))
    assert book_map.seconds(notebook) is None


@pytest.mark.parametrize(("run", "told"), [({"execution_seconds": 36.2}, "35 s"), ({}, "90 s")])
def test_a_page_tells_the_time_of_the_run_that_it_shows(run, told, tmp_path):
    """That of this book; where pages are made from stored outputs, that of the notebook, on a busy machine maybe."""
    chapter = CHAPTERS["mirror_descent/rates"]
    stored = tmp_path / f"{chapter.page}.ipynb"
    stored.parent.mkdir(parents=True)
    times = {"iopub.execute_input": "2026-01-01T00:00:00Z", "shell.execute_reply": "2026-01-01T00:01:30Z"}
    stored.write_text(json.dumps({"cells": [{"cell_type": "code", "metadata": {"execution": times}}]}))
    env = SimpleNamespace(srcdir=tmp_path, attnbook_runs={chapter.page: run} if run else {})
    assert chapters_page.time_of(env, chapter) == told
    assert f"runs for about {told}, training included" in chapters_page._facts(chapter, told).astext()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (2.0, "5 s"), (33.3, "35 s"), (94.0, "95 s"), (124.7, "2 min"), (5400.0, "1.5 h")],
)
def test_durations_are_written_as_a_reader_says_them(value, text):
    assert book_map.duration(value) == text


def test_diagram_links_every_chapter_and_draws_every_connection():
    drawing = connections_svg.write(CHAPTERS, {name: f"{name}.html" for name in CHAPTERS})
    assert all(f'href="{name}.html"' in drawing for name in CHAPTERS)
    assert drawing.count("<path") == sum(len(c.next) for c in CHAPTERS.values())


def test_figures_are_found_with_address_and_alt_text():
    html = (
        '<figure class="attnbook-figure" id="x-figure-1"><img alt="a &lt; b" src="data:image/png;base64,QUJD"></figure>'
    )
    assert figures_page.PICTURE.findall(html) == [("x-figure-1", "a &lt; b", "QUJD")]


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\gamma_\star", "gamma_star"),
        (r"\lambda_{\min}", "lambda_min"),
        (r"W=W_QW_K^\top", "W"),
        (r"a\in\mathbb R^p", "a"),
        (r"\sigma(\cdot)", "sigma"),
        (r"\Vert A\Vert_F", ""),
        (r"Z_1,\dots,Z_4", ""),
    ],
)
def test_symbols_are_entered_as_they_are_typed(formula, text):
    assert symbol_index.typed(formula) == text


@pytest.mark.parametrize(
    ("formula", "symbol"),
    [
        (r"W=W_QW_K^\top", "W"),
        (r"a\in\mathbb R^p", "a"),
        (r"\sigma(\cdot)", r"\sigma"),
        ("a^{*}", "a^*"),
        (r"\hat L\int", r"\hatL\int"),
    ],
)
def test_a_formula_is_known_by_what_it_says_of_a_symbol(formula, symbol):
    assert symbol_links.name(formula) == symbol


def test_symbols_with_two_meanings_are_not_linked():
    """Neither a letter with two rows nor a common row with three letters; rows are counted through all tables."""
    common = "## Common to all parts\n| symbol | in words |\n|---|---|\n| $n$ | samples |\n| $k$, $t$, $s$ | step |"
    part = "## Part 1: A\n| symbol | in words |\n|---|---|\n| $p$, $q$ | sizes |\n| $q$ | a query |"
    page = f"{common}\n\n{part}\n"
    assert symbol_links.symbols(page, symbol_links.COMMON) == {"n": ("symbol-1", "samples")}
    assert symbol_links.symbols(page, "Part 1:") == {"p": ("symbol-4", "sizes")}


def test_each_symbol_of_a_row_has_its_own_meaning():
    rows = "| $p$, $q$ | a size; a query |\n| $r$, $s$ | rates; scores; all |"
    page = f"## Part 1: A\n| symbol | in words |\n|---|---|\n{rows}"
    found = symbol_links.symbols(page, "Part 1:")
    assert {symbol: meaning for symbol, (_, meaning) in found.items()} == {
        "p": "a size", "q": "a query", "r": "rates; scores; all", "s": "rates; scores; all",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chapter", "symbol"),
    [
        ("global_attention/sharpness", r"\phi"),  # softplus there
        ("global_attention/recurrent", "D"),  # layers of a network
        ("global_attention/self_attention", "a"),  # softmax(QK'/sqrt d)
        ("multi_head/how_many_heads", "p"),  # a power of H
        ("mirror_descent/rates", "r"),  # a variable of integration
        ("preconditioning/scaling_law", "b"),  # the bias of a gradient
        ("softmax_ntk/diffusion", "y"),  # a particle on its way back
        ("softmax_ntk/kernel_stability", "C"),  # a constant
    ],
)
def test_a_symbol_that_a_chapter_uses_otherwise_gets_no_words_from_the_page_of_notation(chapter, symbol):
    text = (ROOT / "chapters" / "notation.md").read_text(encoding="utf-8")
    part = symbol_links.PARTS[chapter.split("/")[0]]
    assert symbol in symbol_links.symbols(text, symbol_links.COMMON) | symbol_links.symbols(text, part)
    assert symbol not in symbol_links.known_in(CHAPTERS[chapter], text)


def test_chapters_are_entered_as_they_are_typed():
    assert search_order.names("noisy_mnist", "noisy MNIST") == ["noisy_mnist", "noisy mnist", "noisy-mnist"]
    assert search_order.names("rates") == ["rates"]


def test_social_card_is_drawn(tmp_path):
    from PIL import Image

    social_card.draw(tmp_path / "card.png", "attnbook", "one\ntwo")
    card = Image.open(tmp_path / "card.png")
    assert card.size == social_card.SIZE
    assert card.getpixel((100, 175)) != card.getpixel((5, 5))
    assert (tmp_path / "card.png").stat().st_size < 100_000


def places_to_read_with_care():
    """The claims that the page names, in its directives."""
    lines = (ROOT / "reference" / "read_with_care.md").read_text(encoding="utf-8").splitlines()
    return {
        name
        for before, line in itertools.pairwise(lines)
        if before.startswith("```{care}") and not before.endswith("rest")
        for name in line.split()
    }


def test_read_with_care_has_every_contradicted_statement_and_every_note():
    needed = {c.id for c in ledger.claims() if ledger.standing(c).outcome == "contradicted"}
    assert needed - places_to_read_with_care() == set()
    page = (ROOT / "reference" / "read_with_care.md").read_text(encoding="utf-8")
    assert set(re.findall(r"```{care} rest\n(\w+)", page)) == {paper.name for paper in ledger.papers()}


def test_read_with_care_names_claims_of_the_ledger():
    assert places_to_read_with_care() <= {c.id for c in ledger.claims()}


def test_glossary_is_in_alphabetical_order_and_every_term_leads_to_a_page():
    text = (
        (ROOT / "reference" / "glossary.md").read_text(encoding="utf-8").split("```{glossary}\n")[1].split("\n```")[0]
    )
    entries = [entry.split("\n  ", 1) for entry in text.split("\n\n")]
    terms = [term for term, _ in entries]
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) >= 50
    for term, meaning in entries:
        assert "](" in meaning, term


def test_one_page_for_paper_keeps_links_inside_and_drops_what_is_hidden(tmp_path):
    page = '<head><link rel="stylesheet" href="{0}_static/book.css"></head><article class="bd-article">{1}</article>'
    body = '<h1 id="top">A</h1><a href="chapters/b.html#x">b</a><a href="reference/api.html#f">f</a>'
    body += '<img src="_images/a.png">'
    (tmp_path / "chapters").mkdir()
    (tmp_path / "a.html").write_text(page.format("", body))
    (tmp_path / "chapters" / "b.html").write_text(
        page.format("../", '<h2 id="x">B</h2><a href="../a.html">a</a><img src="../_images/b.png"><img alt="" hidden>')
    )
    text = one_page.one_page(tmp_path, ["a", "chapters/b"])
    assert 'href="#chapters-b--x"' in text
    assert 'id="chapters-b--x"' in text
    assert 'href="#a"' in text
    assert 'href="reference/api.html#f"' in text
    assert 'src="_images/a.png"' in text
    assert 'src="_images/b.png"' in text
    assert "hidden" not in text
    assert text.count("stylesheet") == 1


def test_paper_leaves_out_reference_pages_only():
    assert {c.page for c in CHAPTERS.values()} <= set(one_page.pages())
    assert "reference/claims" not in one_page.pages()


def test_the_table_at_full_size_has_the_times_of_every_experiment():
    lines = costs_page.table(ROOT / "results").splitlines()
    rows = {line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert rows.keys() == experiments().keys()
    for name, (book, core, gpu, memory, said) in rows.items():
        assert book, name
        has_full = "full" in experiments()[name].has()
        assert (bool(core) ^ bool(gpu), bool(memory)) == (has_full, has_full), name
        assert said.startswith(("the ", "a ")) == has_full, name


@pytest.mark.parametrize(
    ("run", "core", "gpu"),
    [
        ({"device": "cpu", "wall_seconds": 90.0, "cpu_seconds": 600.0}, "10", ""),
        ({"device": "cpu", "wall_seconds": 90.0, "cpu_seconds": 3.0}, "under 0.1", ""),
        ({"device": "cuda (NVIDIA H100)", "wall_seconds": 90.0, "cpu_seconds": 600.0}, "", "1.5"),
        ({}, "", ""),
    ],
)
def test_minutes_are_processor_time_on_a_core_and_elapsed_on_a_gpu(run, core, gpu):
    assert (costs_page.minutes(run, "cpu"), costs_page.minutes(run, "cuda")) == (core, gpu)


def test_a_full_size_is_said_to_be_the_papers_own_where_provenance_says_so(tmp_path):
    for size, paper_size in (("book", {}), ("full", {"paper_size": True})):
        (tmp_path / size).mkdir()
        run = {"device": "cpu", "wall_seconds": 1.0, "cpu_seconds": 1800.0, "peak_memory_mib": 7, **paper_size}
        (tmp_path / size / "a.b.json").write_text(json.dumps({"provenance": run}), encoding="utf-8")
    assert costs_page.row("a.b", True, tmp_path) == ("`a.b`", "30", "30", "", "7", "the paper's own")
    assert costs_page.row("a.b", False, tmp_path)[2:] == ("", "", "", "*no full size*")


def test_every_module_of_a_room_is_in_the_reference():
    """A module that nobody entered would have no page, and links to what it defines would fail."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "reference").glob("api*.md"))
    entered = set(re.findall(r"automodule:: (\S+)", pages))
    names = [package.rpartition(".")[2] for package in rooms().values()]
    files = [file for room in names for file in (ROOT / "attnbook" / room).rglob("*.py") if file.stem != "__init__"]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    for room in re.findall(r"{room-reference} (\S+)", pages):
        entered |= set(re.findall(r"automodule:: (\S+)", room_reference.reference(room)))
    assert modules - entered == set()


def test_second_build_keeps_the_search_entries_of_pages_that_did_not_change(tmp_path):
    from sphinx.application import Sphinx

    (tmp_path / "index.rst").write_text("Start\n=====\n\n.. toctree::\n\n   other\n", encoding="utf-8")
    (tmp_path / "other.rst").write_text(".. index:: mirror map\n\nOther\n=====\n\nText.\n", encoding="utf-8")
    for text in ("", "More.\n"):
        with (tmp_path / "index.rst").open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
        app = Sphinx(tmp_path, None, tmp_path / "html", tmp_path / "trees", "html", confoverrides={}, status=None)
        app.connect("build-finished", search_order.keep_index)
        app.build()
        assert '"mirror map"' in (tmp_path / "html" / "searchindex.js").read_text(encoding="utf-8")
