"""Numbers about the book: those of the README and the colophon are counted or measured, never typed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import book_facts
import measure_book
import pytest
import readme_picture
from PIL import Image

from attnbook import ledger

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLOPHON = (ROOT / "reference" / "colophon.md").read_text(encoding="utf-8")


@pytest.fixture
def small_book(tmp_path):
    """One notebook with one slider, two figures, a box and an exercise with solution."""
    prose = [":::{prf:theorem}", ":::{exercise}", ":::{solution}"]
    shown = ['<div class="attnbook-slider">', '<figure class="attnbook-figure">', '<figure class="attnbook-figure">']
    cells = [{"cell_type": "markdown", "source": prose}, {"cell_type": "code", "outputs": shown}]
    (tmp_path / "chapters" / "part").mkdir(parents=True)
    (tmp_path / "chapters" / "part" / "a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return tmp_path


def test_what_stands_in_the_notebooks_is_counted(small_book):
    found = book_facts.counted(small_book)
    expected = {"chapters": 1, "code_cells": 1, "sliders": 1, "figures": 2, "exercises": 1, "solutions": 1, "boxes": 1}
    assert {name: found[name] for name in expected} == expected


def test_every_claim_is_counted_once():
    found = book_facts.counted(ROOT)
    outcomes = [outcome.replace(" ", "_") for outcome in ledger.OUTCOMES]
    assert sum(found[name] for name in outcomes) == found["claims"] == len(ledger.claims())
    without = sum(bool(claim.checked) for claim in ledger.claims())
    assert found["judged"] == found["claims"] - found["pending"] - found["not_testable"] - without


def test_measurements_are_shown_with_their_unit(tmp_path):
    assert book_facts.measured(tmp_path) == {}
    (tmp_path / "reference").mkdir()
    (tmp_path / "benchmarks").mkdir()
    raw = {"cores": 2, "venv_mb": 1893.4, "html_mb": 61.6, "install_seconds": 90}
    rows = "| `make book`, from nothing | 315 | 533 |\n| `make test` | 689 | 1050 |\n"
    table = f"| `make quick` | 61 | 110 |\n{rows}\nLinux, 2 cores, 2026-11-27.\n"
    (tmp_path / "benchmarks" / "book_times.md").write_text(table, encoding="utf-8")
    (tmp_path / "reference" / "measured.json").write_text(json.dumps(raw), encoding="utf-8")
    assert book_facts.measured(tmp_path) == {
        "cores": "2",
        "venv_mb": "1.9 GB",
        "html_mb": "62 MB",
        "install_seconds": "1.5 minutes",
        "build_seconds": "5.2 minutes",
        "build_measured": "Linux, 2 cores, 2026-11-27",
    }


def test_the_pages_name_only_facts_that_exist_and_are_known():
    pages = {page: (ROOT / page).with_suffix(".md").read_text(encoding="utf-8") for page in book_facts.PAGES_WITH_FACTS}
    asked = {page: set(re.findall(r"\{fact\}`(.*?)`", text)) for page, text in pages.items()}
    assert all(asked.values())
    assert {"claims", "sliders", "venv_mb"} <= asked["reference/colophon"]
    assert set().union(*asked.values()) <= set(book_facts.counted(ROOT)) | set(book_facts.measured(ROOT))


def test_rules_are_counted_by_when_they_were_set():
    """What the pages say in words: every judged claim has a rule of one kind, most of them set after a look."""
    found = book_facts.counted(ROOT)
    assert found["rules_before"] + found["rules_after_a_look"] == found["judged"] + found["pending"]
    assert found["rules_after_a_look"] > found["judged"] / 2


def test_few_statements_of_papers_have_a_number_of_the_paper():
    """So the pages promise what was measured, not the paper's number beside it."""
    found = book_facts.counted(ROOT)
    with_number = [claim.id for claim in ledger.claims() if claim.source == "paper" and claim.paper_value]
    assert 0 < found["paper_numbers"] == len(with_number) < found["claims_of_papers"] / 2
    for page in ("intro.md", "README.md", "chapters/how_to_read.md"):
        assert "number beside ours" not in (ROOT / page).read_text(encoding="utf-8")


def test_every_chapter_has_a_slider():
    """The colophon says so."""
    pattern = book_facts.COUNTED["sliders"]
    counts = [len(re.findall(pattern, path.read_text(encoding="utf-8"))) for path in ROOT.glob("chapters/*/*.ipynb")]
    assert min(counts) >= 1
    assert sum(counts) == book_facts.counted(ROOT)["sliders"]


def test_there_is_one_time_to_build():
    """The README, the colophon and the page on performance take it from the same table."""
    (table,) = re.findall(r"`make book`, from nothing \| (\d+)", (ROOT / "benchmarks" / "book_times.md").read_text())
    assert f"takes {book_facts.minutes(float(table))} (" in README
    assert "build_seconds" not in (ROOT / "reference" / "measured.json").read_text(encoding="utf-8")


def test_an_unknown_fact_is_an_error(small_book):
    said = []
    reporter = SimpleNamespace(error=lambda message, line: said.append(message))
    document = SimpleNamespace(settings=SimpleNamespace(env=SimpleNamespace(srcdir=str(small_book))))
    inliner = SimpleNamespace(document=document, reporter=reporter, problematic=lambda *_: None)
    book_facts.fact("fact", "{fact}`banana`", "banana", 1, inliner)
    assert said[0].startswith("fact: got 'banana', expected one of chapters, ")
    (shown,), problems = book_facts.fact("fact", "{fact}`sliders`", "sliders", 1, inliner)
    assert (shown.astext(), problems) == ("1", [])
    assert book_facts.fact("fact", "", "build_seconds", 1, inliner)[0][0].astext() == "not measured yet"


def test_the_table_of_this_book_has_no_typed_number():
    """In our column, digits stand only in names and units that are no counts."""
    rows = [line.split("|")[2] for line in COLOPHON.splitlines() if line.startswith("| ") and "feature" not in line]
    typed = [row for row in rows if re.search(r"\d", re.sub(r"SHA-256|at least 4\.5", "", row))]
    assert len(rows) > 10
    assert typed == []


def test_the_readme_says_what_was_measured():
    """If this fails: make measure."""
    assert measure_book.with_paragraph(README, measure_book.paragraph()) == README


@pytest.mark.parametrize("build", [{}, {"build_seconds": 600.0, "build_measured": "Linux, 2026-02-01"}])
def test_the_paragraph_leaves_out_what_is_not_measured(build, tmp_path, monkeypatch):
    known = {"date": "2026-01-31", "system": "Linux", "cores": 2, "venv_mb": 1900.0, "html_mb": 60.0}
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "measured.json").write_text(json.dumps({**known, **build}), encoding="utf-8")
    monkeypatch.setattr(measure_book, "ROOT", tmp_path)
    said = measure_book.paragraph()
    assert said.startswith("Measured on 2026-01-31 (Linux, 2 cores):\n\n")
    assert "installing" not in said
    assert ("`make book` then takes 10 minutes (Linux, 2026-02-01);" in said) == bool(build)
    assert said.endswith("- on disk, `.venv` takes 1.9 GB and the finished pages 60 MB.")


def test_the_picture_of_the_readme_is_the_one_drawn_from_the_result():
    """To the size: fonts and shades may differ between versions of Matplotlib."""
    stored = readme_picture.FILE.read_bytes()
    sizes = [Image.open(io.BytesIO(data)).size for data in (stored, readme_picture.picture())]
    assert sizes[0] == sizes[1]
    assert len(stored) < 100_000
    (alt,) = re.findall(r"!\[(.+)\]\(style/readme\.png\)", README)
    assert len(alt.split()) >= 10
