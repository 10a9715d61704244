"""The copies of the chapters in which a reader may change anything: none of his work is ever overwritten."""

import json
import re
import subprocess
from pathlib import Path

import copies
import pytest

ROOT = Path(__file__).parent.parent
ONE, TWO, TEXT = "chapters/a/one.ipynb", "chapters/a/two.ipynb", "reference/api.md"
SCRIPT = "chapters/a/one.py"


@pytest.fixture
def book(tmp_path):
    """A small book, copied once."""
    for name in (ONE, TWO, TEXT, SCRIPT):
        write(tmp_path, name, f"{name}, first")
    assert copies.copy(tmp_path) == []
    return tmp_path


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def texts(root):
    return {name: (root / "play" / name).read_text(encoding="utf-8") for name in (ONE, TWO, TEXT)}


def test_what_nobody_changed_follows_the_book(book):
    write(book, ONE, "second")
    assert copies.copy(book) == []
    assert texts(book) == {ONE: "second", TWO: f"{TWO}, first", TEXT: f"{TEXT}, first"}


@pytest.mark.parametrize("newer", [False, True])
def test_what_a_reader_changed_stays_and_is_named(newer, book, capsys):
    write(book, f"play/{ONE}", "mine")
    if newer:
        write(book, ONE, "second")
    for _ in range(2):
        assert copies.copy(book) == [ONE]
        assert texts(book)[ONE] == "mine"
    copies.main(book)
    assert f"yours, kept as they are: play/{ONE}\n" in capsys.readouterr().out


def test_a_copy_that_was_deleted_is_made_afresh(book):
    write(book, f"play/{ONE}", "mine")
    (book / "play" / ONE).rename(book / "play" / "chapters" / "mine.ipynb")
    assert copies.copy(book) == []
    assert texts(book)[ONE] == f"{ONE}, first"
    assert (book / "play" / "chapters" / "mine.ipynb").read_text(encoding="utf-8") == "mine"


def test_a_copy_of_which_nothing_is_known_counts_as_changed(book):
    """As when the notes were lost, or a reader put a file of his own there."""
    (book / "play" / copies.MADE).unlink()
    write(book, ONE, "second")
    assert copies.copy(book) == [ONE]
    assert texts(book)[ONE] == f"{ONE}, first"


def test_a_copy_that_has_become_the_same_again_follows_the_book(book):
    write(book, f"play/{ONE}", "second")
    write(book, ONE, "second")
    assert copies.copy(book) == []
    write(book, ONE, "third")
    assert copies.copy(book) == []
    assert texts(book)[ONE] == "third"


def test_notes_of_jupyter_and_half_files_are_not_left_there(book):
    write(book, "chapters/a/.ipynb_checkpoints/one-checkpoint.ipynb", "old")
    write(book, "chapters/a/__pycache__/one.cpython-311.pyc", "old")
    copies.copy(book)
    found = {path.relative_to(book / "play").as_posix() for path in (book / "play").rglob("*") if path.is_file()}
    assert found == {ONE, TWO, TEXT, SCRIPT, copies.MADE}


def test_links_between_chapters_lead_to_copies():
    """What a notebook links to in the book is copied, too."""
    copied = {file for pattern in copies.COPIED for file in ROOT.glob(pattern)}
    for notebook in (ROOT / "chapters").glob("*/*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        links = {link for link in re.findall(r"\]\(([^()\s#]+)", text) if not link.startswith("http")}
        assert {(notebook.parent / link).resolve() for link in links} <= copied


def test_git_knows_nothing_of_the_copies():
    done = subprocess.run(["git", "check-ignore", f"play/{ONE}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip("no repository here")
    assert done.stdout == f"play/{ONE}\n"
