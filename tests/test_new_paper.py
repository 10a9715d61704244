"""``attnbook new paper``: a skeleton that passes the tests, and refusals that write nothing."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import book_facts
import pytest
from typer.testing import CliRunner

from attnbook import new_paper
from attnbook.cli import app

ROOT = Path(__file__).parent.parent
TESTS = [
    "tests/banana_peel", "tests/ledger/test_claims.py", "tests/ledger/test_red.py", "tests/test_experiments.py",
    "tests/test_exercises.py", "tests/test_markdown.py", "tests/test_new_paper.py", "tests/test_notebooks.py",
    "tests/test_package.py", "tests/test_pages.py",
]  # fmt: skip
CONCERN = (
    "(banana or skins or BP- or named_after or in_the_way or test_pages or arrows or knows_no_chapter"
    " or order_of_the_book or room_of_its_own or unique or live_claim or says_what_it_is or documented or sizes_differ"
    " or unavailable_device or unfinished_starter) and not pool and not cluster"
)


def plan(name="quagga", *, root=ROOT, chapter="quagga_stripes", prefix=None, title=None):
    """Of a paper that nobody is likely to have added, so that these tests pass where one was."""
    return new_paper.planned(root, name, chapter=chapter, prefix=prefix, title=title)


@pytest.fixture
def copy(tmp_path):
    """A copy of what is, or would be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no repository to copy")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_the_skeleton_passes_the_tests_from_the_first_minute(copy):
    def call(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    page = (ROOT / "reference" / "add_a_paper.md").read_text(encoding="utf-8")
    said = call(*shlex.split(re.search(r"^attnbook new paper banana_peel .*$", page, re.MULTILINE)[0]))
    assert "ok  BP-T1: reproduced (held in 5 of 5)" in said
    call("ruff", "check", ".")
    call("ruff", "format", "--check", ".")
    passed = call("pytest", "-q", "-p", "no:cacheprovider", "-k", CONCERN, *TESTS)
    assert int(re.search(r"(\d+) passed", passed)[1]) > 60
    assert "skipped" not in passed.splitlines()[-1]


def test_everything_is_named_after_the_paper():
    files = plan("zebra_quagga", title="How Quaggas Got Lost")
    texts = {path.as_posix(): text for path, text in files.items()}
    assert {"chapters/zebra_quagga/quagga_stripes.py", "tests/zebra_quagga/test_zebra_quagga.py"} <= set(texts)
    part = len(list(ROOT.glob("chapters/*/claims.toml"))) + 1
    assert f'"Part {part}: How Quaggas Got Lost"' in texts["_toc.yml"]
    assert "ZQ-T1" in texts["chapters/zebra_quagga/claims.toml"]
    for path, text in texts.items():
        if not (ROOT / path).exists():
            assert not re.search(r"paper_name|chapter_name|Paper Title|PART_NUMBER|XX|xx-", path + text), path
        else:
            old = (ROOT / path).read_text(encoding="utf-8").splitlines()
            assert [
                line for line in old if line not in text.splitlines() and "attnbook.global_attention" not in line
            ] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "Banana-Peel"}, "name: got 'Banana-Peel', expected a name for a module: "),
        ({"name": "class"}, "name: got 'class', expected a name for a module: "),
        ({"name": "../quagga"}, "name: got '../quagga', expected a name for a module: "),
        ({"chapter": "1st"}, "chapter: got '1st', expected a name for a module: "),
        ({"name": "core"}, "name: got 'core', expected a new one: attnbook/core is there already"),
        ({"name": "cli"}, "name: got 'cli', expected a new one: attnbook/cli.py is there already"),
        ({"name": "implicit_bias"}, "name: got 'implicit_bias', expected a new one: "),
        ({"chapter": "random"}, "chapter: got 'random', expected a name that no module has: the module "),
        ({"chapter": "diffusion"}, "chapter: got 'diffusion', expected a name that no module has: chapters/"),
        ({"name": "gala_apple"}, "prefix: got 'GA', which belongs to global_attention, expected two capital letters"),
        ({"prefix": "b"}, "prefix: got 'b', expected two capital letters"),
        ({"title": 'A "title"'}, "title: got 'A \"title\"', expected one line without "),
        ({"root": ROOT.parent}, f"folder: got {ROOT.parent}, expected a checkout of the repository"),
    ],
)
def test_what_is_in_the_way_is_named(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        plan(**given)


def test_a_refusal_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "paper", "quagga"])
    assert done.exit_code == 2
    assert "attnbook: folder: got " in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("no disk"), KeyboardInterrupt()])
def test_a_failure_later_takes_back_what_was_written(error, tmp_path, monkeypatch, capsys):
    """The files of the book as they were, no folder of the paper, and no results of it; what is of others stays."""
    monkeypatch.setenv("ATTNBOOK_RESULTS", str(tmp_path / "results"))
    files = plan()
    there = {path: (ROOT / path).read_text(encoding="utf-8") for path in files if (ROOT / path).exists()}
    there |= {Path("tests/other/test_other.py"): "", Path("results/book/other.first.json"): "{}"}
    new_paper._write(tmp_path, there)

    @new_paper.written(tmp_path, "quagga", files)
    def fail_later():
        made = ["book/quagga.first.json", "book/quagga.first.nc", "book/.parts/quagga.first-0/1.json"]
        made = [*(f"results/{path}" for path in made), "tests/quagga/x.pyc"]
        new_paper._write(tmp_path, {Path(path): "{}" for path in made})
        assert all((tmp_path / path).read_text(encoding="utf-8") == text for path, text in files.items())
        raise error

    with pytest.raises(type(error)):
        fail_later()
    left = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: (tmp_path / path).read_text(encoding="utf-8") for path in left} == there
    assert not (tmp_path / "attnbook" / "quagga").exists()
    assert "removed again" in capsys.readouterr().err


def test_a_place_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr(
        new_paper.tomllib, "loads", lambda _: {"entry": [{"file": "_toc.yml", "after": "no such line"}]}
    )
    with pytest.raises(ValueError, match=r"^_toc\.yml: expected a place for the new entry"):
        new_paper._longer_files(ROOT, {"XX": "BA"})


@pytest.mark.parametrize(
    ("root", "paper", "most"),
    [
        (ROOT, book_facts.MINIATURE, {"library": 150, "script": 330, "test": 220}),
        (ROOT / new_paper.TEMPLATE, "paper_name", {"library": 40, "script": 80, "test": 60}),
    ],
)
def test_miniature_and_skeleton_stay_small(root, paper, most):
    lines = book_facts.python_lines(root, paper)
    assert min(lines.values()) > 0
    assert {part: number for part, number in lines.items() if number > most[part]} == {}
