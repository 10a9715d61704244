"""``make address``: what it writes where, that nothing is left of it, and what it refuses."""

import json
import re
import subprocess
from pathlib import Path

import address
import book_address
import pytest
import yaml

ROOT = Path(__file__).parent.parent
SOMEONE, ANOTHER = "https://github.com/someone/attnbook", "https://github.com/another-one/attn.book_2"
SMALL = {
    "_config.yml": 'title: attnbook\nrepository:\n  url: ""\n  branch: main   # kept\n',
    "_toc.yml": "root: intro\nparts:\n- chapters:\n  - file: chapters/notation\n  - file: chapters/a/one\n"
    "    sections:\n    - file: chapters/b/two\n      title: Two\n  - file: reference/api\n",
    "README.md": "git clone <the address of this repository> attnbook\n"
    'pip install "attnbook @ git+<the address of this repository>"\nhttps://github.com/someone-else/attnbook\n',
    "CONTRIBUTING.md": "git clone <the address of this repository> attnbook && cd attnbook\n",
    "chapters/notation.md": "# Notation\n[one](a/one.ipynb)\n",
    "reference/api.md": "# Reference\n",
    "intro.md": "# Intro\n",
}
TEXT = [
    "[two](../b/two.ipynb), [$W$, é](../notation.md#part-3) and [api](../../reference/api.md \"the title\");\n",
    "[here](#a-heading), [this](one.ipynb), [a page that is none](../../README.md), [gone](gone.ipynb),\n",
    "[abroad](https://example.org/chapters/b/two.ipynb), `two.ipynb`, ![picture](two.png)",
]  # fmt: skip
LINKED = ("attnbook", "results")
PUBLISHED = "https://someone.github.io/attnbook/"


def notebook(*cells):
    """The text of a notebook, as the tools store it, that begins with an empty cell for Colab."""
    code = {"cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "outputs": []}
    first = {**code, "source": ["# On Colab\n"]}
    content = {"cells": [first, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@pytest.fixture
def small(tmp_path):
    """A small book without an address, written once by the tool."""
    prose = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": TEXT}
    files = {**SMALL, "chapters/a/one.ipynb": notebook(prose), "chapters/b/two.ipynb": notebook()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [path.name for path in address.write(tmp_path, "")] == ["one.ipynb", "two.ipynb"]
    return tmp_path


@pytest.fixture
def whole(tmp_path):
    """A copy of this repository, as far as the tool reads it."""
    for folder in LINKED:  # read for the sizes of experiments, and never written
        (tmp_path / folder).symlink_to(ROOT / folder)
    settings = [ROOT / name for name in ("_config.yml", "_toc.yml", "README.md", "CONTRIBUTING.md")]
    for path in [*settings, *(ROOT / "chapters").rglob("*"), *(ROOT / "reference").glob("*.md")]:
        if path.is_file():
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path


def contents(root):
    files = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in LINKED]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def prose(root):
    cells = json.loads((root / "chapters/a/one.ipynb").read_text(encoding="utf-8"))["cells"]
    return "".join(cells[2]["source"])


def first(path):
    return "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])


def test_the_address_is_written_where_it_is_needed(small):
    address.write(small, SOMEONE)
    assert address.current(small) == SOMEONE
    settings = yaml.safe_load((small / "_config.yml").read_text(encoding="utf-8"))
    assert settings == {"title": "attnbook", "repository": {"url": SOMEONE, "branch": "main"}}
    readme = (small / "README.md").read_text(encoding="utf-8").splitlines()
    assert readme[0] == f"git clone {SOMEONE} attnbook"
    assert readme[1] == f'pip install "attnbook @ git+{SOMEONE}"'
    assert readme[2] == SMALL["README.md"].splitlines()[2]
    assert f"git clone {SOMEONE} attnbook && cd attnbook" in (small / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in address.notebooks(small):
        cell, folder = first(path), path.parent.relative_to(small).as_posix()
        assert f"git clone -q --depth 1 {SOMEONE} /content/book\n    %pip install -q /content/book\n" in cell
        assert f"    %cd -q /content/book/{folder}\n" in cell


def test_links_of_notebooks_lead_to_the_published_book_and_other_links_stay(small):
    address.write(small, SOMEONE)
    assert prose(small).splitlines() == [
        f"[two]({PUBLISHED}chapters/b/two.html), [$W$, é]({PUBLISHED}chapters/notation.html#part-3) and "
        f'[api]({PUBLISHED}reference/api.html "the title");',
        f"[here](#a-heading), [this]({PUBLISHED}chapters/a/one.html), [a page that is none](../../README.md), "
        "[gone](gone.ipynb),",
        TEXT[2],
    ]
    assert (small / "chapters/notation.md").read_text(encoding="utf-8") == SMALL["chapters/notation.md"]


@pytest.mark.parametrize("way", [[SOMEONE], [SOMEONE, ANOTHER], [ANOTHER, SOMEONE, SOMEONE]])
def test_no_way_leaves_a_trace(way, small):
    before = contents(small)
    for url in way:
        address.write(small, url)
        assert address.write(small, url) == []
        assert all(other.encode() not in b"".join(contents(small).values()) for other in {SOMEONE, ANOTHER} - {url})
    address.write(small, "")
    assert contents(small) == before


def test_the_repository_goes_there_and_back(whole):
    """Whatever the address of this copy is; every link between chapters has the form that the tool understands."""
    before, own = contents(whole), address.current(whole)
    for url in (SOMEONE, ANOTHER):
        address.write(whole, url)
        published = book_address.published_at(url)
        readme, contributing = ((whole / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
        assert f"git clone {url} attnbook" in readme
        assert f"git clone {url} attnbook" in contributing
        assert address.NOT_SET not in readme + contributing
        for path in address.notebooks(whole):
            links = re.findall(r"\]\(([^()\s]+)\)", path.read_text(encoding="utf-8"))
            assert [link for link in links if re.search(r"\.(ipynb|md)($|#)", link)] == []
            assert all(name in book_address.pages(whole) for name in inside(links, published))
    address.write(whole, own)
    assert contents(whole) == before


def inside(links, published):
    """The pages of the book among the links."""
    return [link.removeprefix(published).split(".html")[0] for link in links if link.startswith(published)]


def test_every_file_of_this_repository_has_its_address(whole):
    """What ``make address`` writes is up to date."""
    changed = [path.relative_to(whole).as_posix() for path in address.write(whole, address.current(whole))]
    assert changed == [], "run: make address"


def test_without_an_address_the_first_cell_installs_nothing_and_says_how(small):
    code = first(small / "chapters/a/one.ipynb")
    assert "pip" not in code
    assert "make address URL=" in code
    assert code.endswith('\nsize = "auto"\ndevice = "auto"')


@pytest.mark.parametrize("url", [f"{SOMEONE}.git", f"{SOMEONE}/"])
def test_the_address_that_is_cloned_from_will_do(url, small):
    address.write(small, url)
    assert address.current(small) == SOMEONE


@pytest.mark.parametrize(
    "url",
    [
        "someone/attnbook",
        "http://github.com/someone/attnbook",
        "git@github.com:someone/attnbook.git",
        "https://github.com/someone",
        "https://github.com/some one/attnbook",
        'https://github.com/someone/attnbook"; echo',
        "https://github.com/someone/attnbook/tree/main",
        "https://gitlab.com/someone/attnbook",
    ],
)
def test_a_malformed_address_is_refused_and_named(url, small, monkeypatch, capsys):
    monkeypatch.setattr(address, "ROOT", small)
    before = contents(small)
    assert address.main([url]) == 1
    said = capsys.readouterr().err
    assert said == f"URL: expected an address such as https://github.com/someone/attnbook, got {url!r}\n"
    assert contents(small) == before


def test_the_command_sets_keeps_and_takes_away(small, monkeypatch, capsys):
    monkeypatch.setattr(address, "ROOT", small)
    for argument, then in ((SOMEONE, SOMEONE), (None, SOMEONE), ("none", "not set"), (None, "not set")):
        assert address.main([argument] if argument else []) == 0
        *written, last = capsys.readouterr().out.splitlines()
        assert last == f"address of this repository: {then}"
        assert bool(written) == (argument is not None)


def test_make_hands_the_address_on():
    for given, then in ((["URL=http://x"], "tools/address.py http://x"), ([], "tools/address.py")):
        told = subprocess.run(
            ["make", "--no-print-directory", "-n", "address", *given],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip().endswith(then)


def test_the_workflow_publishes_with_the_address_of_its_repository():
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8"))
    steps = [step.get("run") for step in workflow["jobs"]["publish"]["steps"]]
    set_address = "make address URL=https://github.com/${{ github.repository }}"
    assert steps.index(set_address) == steps.index("make book") - 1


def test_a_notebook_that_begins_otherwise_is_left_alone(small):
    (small / "chapters/b/two.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "metadata": {}, "source": ["1 + 1"]}]}), encoding="utf-8"
    )
    before = contents(small)
    with pytest.raises(ValueError, match=r"two\.ipynb: the first cell is not the one for Colab"):
        address.write(small, SOMEONE)
    assert contents(small) == before


def test_settings_without_the_line_are_named(small):
    (small / "_config.yml").write_text("title: attnbook\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"_config\.yml: expected the lines .repository:. and .  url: \.\.\."):
        address.current(small)


@pytest.mark.parametrize(
    ("repository", "published"),
    [
        ("", ""),
        (SOMEONE, PUBLISHED),
        ("https://github.com/Someone/Book", "https://someone.github.io/Book/"),
        ("https://github.com/Someone/someone.github.io", "https://someone.github.io/"),
    ],
)
def test_where_github_publishes(repository, published):
    assert book_address.published_at(repository) == published


def test_no_file_names_an_owner_that_is_none():
    """The word that once stood for an unknown owner of the repository, in capitals."""
    word = "OWN" + "ER"
    listed = subprocess.run(["git", "grep", "-lw", word], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode > 1:
        pytest.skip("no repository here: git cannot list its files")
    assert listed.stdout == ""
