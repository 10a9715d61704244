"""Ledger files: a typing error is reported with its place and never becomes a claim that nobody checks."""

import json

import pytest

from attnbook.ledger import LedgerError, claim, papers, read_paper, schema

CLAIM = {
    "id": "XY-T1",
    "source": "paper",
    "where": "Theorem 1",
    "statement": "Errors fall.",
    "why": "It says so.",
    "chapter": "toy/errors",
    "experiment": "toy.errors",
    "accept": "slope <= -1",
}
HEAD = {"part": 1, "title": "A Toy", "prefix": "XY", "citation": "toy"}
ABSENT = object()


def toml(value):
    """A value in TOML; texts and lists are written as in JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(v)}" for key, v in value.items()) + " }"
    return str(value) if isinstance(value, float) else json.dumps(value)


def table(head, entry):
    return "\n".join([head, *(f"{key} = {toml(value)}" for key, value in entry.items() if value is not ABSENT), ""])


@pytest.fixture
def write(tmp_path):
    """Call to write a file of these claims into a checkout."""

    def write(*claims, head=HEAD, name="toy"):
        path = tmp_path / "chapters" / name / "claims.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([table("[paper]", head), *(table("[[claim]]", c) for c in claims)]), encoding="utf-8")
        return path

    return write


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with no papers but those that the test writes."""
    (tmp_path / "_toc.yml").touch()
    monkeypatch.chdir(tmp_path)


def test_a_file_gives_its_paper_and_claims_in_order(write):
    other = CLAIM | {"id": "XY-T2", "paper_value": {"slope": -1, "width": 2.5}, "status": "pending"}
    paper = read_paper(write(CLAIM, other))
    assert (paper.name, paper.part, paper.title, paper.prefix, paper.citation) == ("toy", 1, "A Toy", "XY", "toy")
    first, second = paper.claims
    assert (first.id, first.paper, first.verdict, first.size, first.pending) == (
        "XY-T1", "toy", "reproduced", "", False,
    )  # fmt: skip
    assert (second.id, second.paper_value, second.pending) == ("XY-T2", {"slope": -1, "width": 2.5}, True)


def test_a_claim_may_be_untestable_with_a_reason(write):
    gone = CLAIM | {"experiment": ABSENT, "accept": ABSENT, "untestable": "The data are not public."}
    assert read_paper(write(gone)).claims[0].untestable == "The data are not public."


@pytest.mark.parametrize("required", ["id", "source", "where", "statement", "why", "chapter"])
@pytest.mark.parametrize("value", [ABSENT, ""], ids=["missing", "empty"])
def test_a_missing_field_is_named_with_file_and_claim(required, value, write):
    with pytest.raises(LedgerError, match=rf"^toy/claims\.toml, claim 1.*: field '{required}' is missing or empty$"):
        read_paper(write(CLAIM | {required: value}))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"acept": "slope <= -1"}, "unknown field 'acept'"),
        ({"paper": "toy"}, "unknown field 'paper'"),
        ({"accept": 3}, "'accept' must be a text"),
        ({"where": ["Theorem 1"]}, "'where' must be a text"),
        ({"status": True}, "'status' must be a text"),
        ({"kind": "theorem"}, "unknown field 'kind'"),
        ({"source": "ours"}, "'source' must be one of 'paper', 'book'"),
        ({"setting": "beside"}, "'setting' must be one of '', 'inside', 'outside', 'vacuous'"),
        ({"source": "book", "setting": "inside"}, "'setting' must be one of '', got"),
        ({"merged": "XY-T9"}, "'merged' must be a list of ids"),
        ({"merged": ["T9"]}, "'merged' must be a list of ids"),
        ({"merged": [9]}, "'merged' must be a list of ids"),
        ({"verdict": "not reproduced"}, "'verdict' must be one of 'reproduced'"),
        ({"status": "done"}, "'status' must be one of '', 'pending'"),
        ({"size": "smoke"}, "'size' must be one of '', 'book', 'full'"),
        ({"paper_value": 3}, "'paper_value' must be a table of numbers"),
        ({"paper_value": {"slope": "steep"}}, "paper_value.slope must be a"),
        ({"paper_value": {"slope": True}}, "paper_value.slope must be a"),
        ({"paper_value": {"slope": float("nan")}}, "paper_value.slope must be a"),
        ({"accept": ABSENT}, "'accept' and 'experiment' are needed"),
        ({"experiment": ABSENT}, "'accept' and 'experiment' are needed"),
        ({"untestable": "No data."}, "neither 'accept' nor 'experiment'"),
        ({"untestable": "No data.", "experiment": ABSENT}, "neither 'accept' nor 'experiment'"),
        ({"untestable": "No data.", "accept": ABSENT}, "neither 'accept' nor 'experiment'"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_claim(change, field, write):
    with pytest.raises(LedgerError) as caught:
        read_paper(write(CLAIM, CLAIM | {"id": "XY-T2"} | change))
    message = str(caught.value)
    assert message.startswith("toy/claims.toml, claim 2 (XY-T2): ")
    assert field in message


@pytest.mark.parametrize("setting", ["outside", "vacuous"])
@pytest.mark.parametrize(
    ("verdict", "allowed"),
    [
        ("reproduced", False),
        ("contradicted", False),
        ("reproduced in trend", True),
        ("consistent with the bound", True),
    ],
)
def test_only_inside_its_hypotheses_a_statement_is_reproduced_or_contradicted(setting, verdict, allowed, write):
    """Outside, or where it says nothing, a rule that holds earns less; the default verdict is too much, too."""
    read_paper(write(CLAIM | {"setting": "inside", "verdict": verdict}))
    path = write(CLAIM | {"setting": setting, "verdict": verdict})
    if allowed:
        assert read_paper(path).claims[0].verdict == verdict
        return
    with pytest.raises(LedgerError, match="'verdict' must be one of 'consistent with the bound', 'repro"):
        read_paper(path)
    with pytest.raises(LedgerError, match="'verdict' must be one of"):
        read_paper(write(CLAIM | {"setting": setting}))


@pytest.mark.parametrize("bad", ["XY T1", "xy-T1", "XYZ-T1", "XY-", "XY", "XY-T1\n", "XY-<b>"])
def test_a_bad_id_is_refused(bad, write):
    with pytest.raises(LedgerError) as caught:
        read_paper(write(CLAIM | {"id": bad}))
    assert str(caught.value).startswith(f"toy/claims.toml, claim 1 ({bad}): field 'id'")


def test_an_id_of_another_paper_is_refused(write):
    with pytest.raises(LedgerError, match=r"^toy/claims.toml, GA-T1: id must start with 'XY' and a hyphen$"):
        read_paper(write(CLAIM | {"id": "GA-T1"}))


def test_a_merged_claim_leads_to_its_successor_and_its_id_is_not_used_again(write, checkout):
    whole = CLAIM | {"merged": ["XY-T1.1", "XY-T1.2"]}
    write(whole)
    assert claim("XY-T1").merged == ("XY-T1.1", "XY-T1.2")
    with pytest.raises(LedgerError, match=r"^claim_id: XY-T1\.2 was merged into XY-T1$"):
        claim("XY-T1.2")
    with pytest.raises(LedgerError, match=r"^toy/claims.toml: claim XY-T1.2 is listed twice$"):
        read_paper(write(whole, CLAIM | {"id": "XY-T1.2"}))
    with pytest.raises(LedgerError, match=r"^toy/claims.toml, GA-T1: id must start with 'XY' and a hyphen$"):
        read_paper(write(CLAIM | {"merged": ["GA-T1"]}))


def test_a_repeated_id_is_refused_within_a_file_and_between_files(write, checkout):
    with pytest.raises(LedgerError, match=r"^toy/claims.toml: claim XY-T1 is listed twice$"):
        read_paper(write(CLAIM, CLAIM))
    write(CLAIM), write(CLAIM, head=HEAD | {"part": 2}, name="other")
    with pytest.raises(LedgerError, match="claim XY-T1 is listed twice"):
        papers()


def test_papers_come_by_their_part_and_no_two_have_the_same(write, checkout):
    write(head=HEAD | {"part": 2}, name="a"), write(head=HEAD | {"part": 1}, name="b")
    assert [paper.name for paper in papers()] == ["b", "a"]
    schema._read_all.cache_clear()
    write(head=HEAD | {"part": 1}, name="a")
    with pytest.raises(LedgerError, match=r"^[ab], [ab]: both are part 1$"):
        papers()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": ABSENT}, "'title' must be a text"),
        ({"prefix": ""}, "'prefix' must be a text"),
        ({"citation": 3}, "'citation' must be a text"),
        ({"part": ABSENT}, "'part' must be a whole number from 1, got None"),
        ({"part": True}, "'part' must be a whole number from 1, got True"),
        ({"part": 0}, "'part' must be a whole number from 1, got 0"),
        ({"titel": "A Toy"}, "unknown field 'titel'"),
    ],
)
def test_a_wrong_head_is_named_with_file_and_field(change, message, write):
    with pytest.raises(LedgerError, match=rf"^toy/claims\.toml, \[paper\]: .*{message}"):
        read_paper(write(CLAIM, head=HEAD | change))


@pytest.mark.parametrize(
    "content",
    [
        b"[paper",
        b"\xff\xfe",
        b"paper = 3",
        b"claim = 3",
        b"claims = []",
        b"[[paper]]",
        b"",
        b"title = 'no table'",
        b"claim = {}\n[paper]\npart = 1\ntitle = 'A Toy'\nprefix = 'XY'\ncitation = 'toy'",
    ],
)
def test_what_is_no_ledger_file_is_refused_by_name(content, tmp_path):
    path = tmp_path / "toy" / "claims.toml"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"^toy/claims\.toml"):
        read_paper(path)


def test_one_bracket_instead_of_two_is_refused(write):
    path = write(CLAIM)
    path.write_text(path.read_text(encoding="utf-8").replace("[[claim]]", "[claim]"), encoding="utf-8")
    with pytest.raises(LedgerError, match=r"^toy/claims\.toml: .*\[\[claim\]\]"):
        read_paper(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(LedgerError, match=r"^toy/claims\.toml: cannot be read"):
        read_paper(tmp_path / "toy" / "claims.toml")


def test_an_unknown_claim_comes_with_the_nearest_ids():
    with pytest.raises(LedgerError, match=r"no claim 'GA-TAB1-headlin' .*; did you mean .*GA-TAB1-headline"):
        claim("GA-TAB1-headlin")
    with pytest.raises(LedgerError, match=r"no claim '§' in the ledger; expected one of those that `attnbook list`"):
        claim("§")
