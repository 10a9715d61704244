"""The text of the notebooks reads well without MyST: plain CommonMark with formulas, as in Colab and on GitHub."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pybtex.database import parse_file
from pybtex.richtext import Text

from attnbook import ledger
from attnbook.ledger.signs import SIGN

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted((ROOT / "chapters").glob("*/*.ipynb"))
BOXES = r":{3,}(\{(prf:\w+|admonition|dropdown|exercise|solution)\}.*)?"
OPTIONS = r":(label|class): [\w -]+|:nonumber:"
ALLOWED = re.compile(rf"({BOXES}|{OPTIONS}|\([\w-]+\)=)$")
"""Lines that only MyST understands, and that a reader elsewhere sees as they are."""
MYST = re.compile(r"\{[\w:-]+\}|:::|^:\w+:|^\([\w-]+\)=", re.M)
FORMULA = re.compile(r"\$\$(.+?)\$\$(?: \(([\w-]+)\))?", re.S)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
NUMBER = re.compile(r"\b[Ee]q(?:uation)?s?\.? \(?\d|(?<!\w)\(\d{1,2}[a-z]?\)")
"""What ends before the number of a formula that is not on the page, or before the second of two."""
OF_A_PAPER = re.compile(r"(?:[Pp]aper's|their)(?: [a-z*]+){0,2}(?:,? ?(?:and |or )?\(\d+[a-z]?\))*,?(?: and| or| to)?$")
PLAIN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, allow_labels=False)


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


@cache
def texts(path):
    """The text cells of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def links(path):
    """Text and target of all links."""
    return [link for text in texts(path) for link in LINK.findall(re.sub(r"\$+[^$]+\$+", "formula", text))]


def unnamed(text):
    """Numbers of formulas that may be the page's or a paper's: no link, and no word that they are a paper's."""
    text = re.sub(r"`[^`]*`", "code", FORMULA.sub("formula", text))
    text = LINK.sub("link", re.sub(r"\$[^$]+\$", "formula", text))
    return [text[: n.end()][-60:] for n in NUMBER.finditer(text) if not OF_A_PAPER.search(text[: n.start()].rstrip())]


def unrendered(text):
    """Lines of running text that plain Markdown shows as MyST's raw syntax; code that is meant as code aside."""
    found = []
    for token in PLAIN.parse(text):
        if token.type == "fence" and "{" in token.info:
            found.append(f"```{token.info}")
        pieces = [child for child in token.children or () if child.type in {"text", "softbreak", "code_inline"}]
        lines = "".join("\n" if p.type == "softbreak" else "`" * (p.type == "code_inline") + p.content for p in pieces)
        found += [line for line in lines.splitlines() if MYST.search(line) and not ALLOWED.match(line)]
    return found


@pytest.mark.parametrize(
    "raw",
    [
        "see {eq}`md-ts-1`",
        "{cite:t}`someone` say",
        "```{prf:theorem} Title\ntext\n```",
        "```{exercise-start}\n:label: a\n```",
        ":::{margin}\ntext\n:::",
    ],
)
def test_raw_syntax_is_noticed(raw):
    assert unrendered(raw)


@pytest.mark.parametrize(
    "fine", ["`f(x)`", "$\\{x\\}$", ":::{prf:theorem} Title\n:label: a-b\n\ntext\n:::", "(a-b)=\n# Title"]
)
def test_what_reads_well_is_left_alone(fine):
    assert unrendered(fine) == []


def test_a_chapter_shows_no_raw_syntax(chapter):
    assert [line for text in texts(chapter) for line in unrendered(text)] == []


def test_formulas_are_numbered_in_order_and_carry_their_number_in_their_label(chapter):
    """Every front end then shows the number that the text uses: Sphinx and JupyterLab count, others show the label."""
    labels = [label for text in texts(chapter) for _, label in FORMULA.findall(text)]
    prefixes = {label.rpartition("-")[0] for label in labels}
    assert len(prefixes) <= 1
    assert labels == [f"{prefix}-{number}" for prefix in prefixes for number in range(1, len(labels) + 1)]


def test_links_to_formulas_say_their_number(chapter):
    for text, target in links(chapter):
        if number := re.fullmatch(r"\((\d+)\)", text):
            assert target.endswith(f"-{number[1]}"), (text, target)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("by the paper's (7) and [(7)](#md-ts-7)", 0),
        ("the paper's inequalities (3), (4) and (5)", 0),
        ("the paper's (3), with a larger (4)", 1),
        ("the bound (7), and eq. (8)", 2),
        ("**Proof.** (1) As long", 1),
        ("$$x$$ (md-ts-3), $f(1)$, `g(2)`", 0),
    ],
)
def test_numbers_that_may_be_of_the_page_or_of_a_paper_are_noticed(text, found):
    assert len(unnamed(text)) == found


def test_a_number_of_a_paper_is_called_so(chapter):
    """A number of a formula is a link, or says that it is the paper's: both count from one."""
    assert [number for text in texts(chapter) for number in unnamed(text)] == []


def test_claims_and_pictures_call_numbers_of_a_paper_so():
    """Their words stand on pages whose own formulas have numbers."""
    told = {
        claim.id: " ".join(filter(None, (claim.statement, claim.why, claim.note, claim.untestable, claim.checked)))
        for claim in ledger.claims()
    }
    for file in [*(ROOT / "attnbook").glob("*/*/figures.py"), *(ROOT / "chapters").glob("*/*.py")]:
        strings = [node.value for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if is_text(node)]
        told[str(file)] = "\n".join(strings)
    assert {name: found for name, text in told.items() if (found := unnamed(text))} == {}


def is_text(node):
    """Whether a part of a program is a piece of text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_links_within_a_chapter_have_their_target(chapter):
    whole = "\n".join(texts(chapter))
    targets = {*re.findall(r"^\((\S+)\)=|^:label: (\S+)|\$\$ \((\S+)\)$", whole, re.M)}
    known = {name for found in targets for name in found}
    assert [target for _, target in links(chapter) if target.startswith("#") and target[1:] not in known] == []


def test_signs_are_those_of_the_verdicts_and_lead_to_the_table_of_the_chapter(chapter):
    text = "\n".join(texts(chapter))
    assert ledger.wrong_signs(text) == []
    if SIGN.search(text):
        cells = ["".join(c["source"]) for c in json.loads(chapter.read_text(encoding="utf-8"))["cells"]]
        (place,) = [i for i, cell in enumerate(cells) if "## What we checked\n" in cell]
        assert cells[place + 1].endswith(f'ledger.checked("{chapter.parent.name}/{chapter.stem}")')


def test_links_to_other_pages_lead_to_files(chapter):
    for _, target in links(chapter):
        if not target.startswith(("#", "http")):
            assert (chapter.parent / target.split("#")[0]).is_file(), target


def test_links_to_places_on_other_pages_hold_no_formula(chapter):
    """Pages would show no text at all for them."""
    assert [text for text, target in links(chapter) if ".ipynb#" in target and "formula" in text] == []


@cache
def works():
    """Address of a work to the two ways to name it."""
    found = {}
    for entry in parse_file(str(ROOT / "chapters" / "references.bib")).entries.values():
        if address := entry.fields.get("url") or ("doi" in entry.fields and f"https://doi.org/{entry.fields['doi']}"):
            found[address] = {f"{names(entry)} ({entry.fields['year']})", f"{names(entry)}, {entry.fields['year']}"}
    return found


def names(entry):
    people = entry.persons["author"]
    last = [Text.from_latex(" ".join([*p.prelast_names, *p.last_names])).render_as("text") for p in people]
    return {1: last[0], 2: " and ".join(last)}.get(len(last), f"{last[0]} et al.")


def test_links_to_works_name_the_authors_and_the_year(chapter):
    """As the bibliography has them."""
    for text, target in links(chapter):
        if target in works():
            assert text in works()[target]
