"""The claims of all papers: complete, unique, and each with a rule that can be evaluated."""

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from each import each

from attnbook import ledger
from attnbook.core.results import Measurement, stored_measurements
from attnbook.ledger.judging import FUNCTIONS
from attnbook.registry import experiments
from attnbook.rooms import rooms

ROOT = Path(__file__).parents[2]
FILES = {
    file.parent.name: tomllib.loads(file.read_text(encoding="utf-8")) for file in ROOT.glob("chapters/*/claims.toml")
}
"""Read without the schema, so that its own checks are not trusted."""
LIVE = [c for c in ledger.claims() if not c.pending and not c.untestable]


@pytest.fixture(params=ledger.papers(), ids=lambda paper: paper.name)
def paper(request):
    return request.param


def test_papers_come_in_the_order_of_the_book_and_are_numbered_without_a_gap():
    parts = tomllib.loads((ROOT / "chapters" / "map.toml").read_text(encoding="utf-8"))
    assert [paper.name for paper in ledger.papers()] == [name for name in parts if name != "two_hours"]
    assert [paper.part for paper in ledger.papers()] == list(range(1, len(FILES) + 1))


def test_every_paper_has_a_prefix_and_a_room_of_its_own():
    prefixes = {raw["paper"]["prefix"]: f"attnbook.{name}" for name, raw in FILES.items()}
    assert rooms() == prefixes
    assert len(prefixes) == len(FILES)
    assert all((ROOT / package.replace(".", "/") / "__init__.py").is_file() for package in prefixes.values())


def test_ids_are_unique_across_papers_and_start_with_the_prefix():
    ids = Counter()
    for raw in FILES.values():
        assert all(entry["id"].startswith(raw["paper"]["prefix"] + "-") for entry in raw["claim"])
        ids.update(entry["id"] for entry in raw["claim"])
    assert [name for name, count in ids.items() if count > 1] == []
    assert set(ids) == {c.id for c in ledger.claims()}


def test_every_rule_can_be_evaluated_and_uses_what_is_measured(paper):
    for claim in (c for c in paper.claims if c.accept):
        names = {node.id for node in ast.walk(ast.parse(claim.accept, mode="eval")) if isinstance(node, ast.Name)}
        own = {name for name in names - set(FUNCTIONS) if not name.startswith("paper_")}
        assert own, claim.id
        dummy = Measurement({name: 0.3 + 0.1 * i for i, name in enumerate(sorted(own))})
        assert ledger.judge(claim, dummy).outcome in {claim.verdict, "not reproduced"}


def test_formulas_are_closed(paper):
    for claim in paper.claims:
        assert claim.statement.count("$") % 2 == 0, claim.id
        assert claim.note.count("$") % 2 == 0, claim.id


def test_every_paper_is_in_the_bibliography(paper):
    references = (ROOT / "chapters" / "references.bib").read_text(encoding="utf-8")
    assert f"{{{paper.citation}," in references


def test_claims_belong_to_chapters_and_experiments_of_their_paper(paper):
    for claim in paper.claims:
        assert claim.chapter.startswith(f"{paper.name}/"), claim.id
        assert claim.untestable or claim.experiment.startswith(f"{paper.name}."), claim.id


def test_every_chapter_of_a_live_claim_is_written():
    chapters = sorted({c.chapter for c in LIVE})
    assert [name for name in chapters if not (ROOT / "chapters" / f"{name}.ipynb").is_file()] == []


@pytest.mark.slow
def test_what_is_measured_is_what_the_ledger_lists_as_live(all_smoke_results):
    """No live claim without a measurement, no measurement without a claim; the names suit the rules.

    What only the full size shows may be missing from a small run, and so may all claims of an experiment on real data,
    whose small run uses made-up ones; their stored results have them.
    """
    assert set(all_smoke_results) == set(experiments())
    measured = {claim: name for name in all_smoke_results for claim in all_smoke_results.measurements(name)}
    live = {c.id: c.experiment for c in LIVE}
    assert measured.items() <= live.items()
    for claim in live.keys() - measured.keys():
        scale = ledger.claim(claim).size or "book"
        assert scale != "book" or not all_smoke_results.measurements(live[claim])
        assert claim in stored_measurements(live[claim], scale)
    for name in all_smoke_results:
        assert {v.claim.experiment for v in ledger.check(all_smoke_results[name]).verdicts} <= {name}


def test_every_live_claim_has_a_verdict():
    """Pending means not written; a written chapter has its numbers."""

    def check(claim):
        assert ledger.standing(claim).outcome in {claim.verdict, "not reproduced"}

    each(LIVE, check, lambda claim: claim.id)
