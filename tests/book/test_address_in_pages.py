"""A small book, built with and without the address of its repository: links stay inside, buttons need the address."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import address
import book_address
import launching
import nbformat
import pytest
import yaml

pytest.importorskip("jupyter_book", reason="Jupyter Book is not installed")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
URL = "https://github.com/someone/attnbook"
PROSE = (
    "# One\n\n[two](../b/two.ipynb#a-heading), [notation](../notation.md) and [elsewhere](https://example.org/a.html)."
)


class Links(HTMLParser):
    """The links of a page, those in its article apart."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        text = file.read_text(encoding="utf-8")
        self.found: list[str] = []
        self.feed(text)
        self.all = self.found
        self.found = []
        self.feed(text[text.index('<article class="bd-article">') : text.index("</article>")])
        self.article = self.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a link leads."""
        if tag == "a":
            self.found.append(dict(attrs).get("href") or "")


def settings() -> dict:
    """The settings of this book, as far as a book without its extensions can use them."""
    full = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    kept = {name: full[name] for name in ("title", "parse", "launch_buttons", "html", "only_build_toc_files")}
    extension = {"local_extensions": {"book_address": str(ROOT / "_ext")}, "recursive_update": True}
    config = {name: full["sphinx"]["config"][name] for name in ("myst_heading_anchors", "html_theme_options")}
    kept["html"].pop("favicon")
    config["html_theme_options"].pop("footer_content_items")  # its template is one of the book's own
    return {**kept, "execute": {"execute_notebooks": "off"}, "sphinx": {**extension, "config": config}}


def write_book(folder: Path) -> None:
    """Two chapters and a page, without an address."""
    repository = 'repository:\n  url: ""\n  branch: main\n  path_to_book: ""\n'
    pages = ["format: jb-book", "root: intro", "chapters:"]
    pages += [f"  - file: chapters/{name}" for name in ("notation", "a/one", "b/two")]
    files = {"_toc.yml": "\n".join(pages), "_config.yml": repository + yaml.safe_dump(settings())}
    files |= {"intro.md": "# Intro", "chapters/notation.md": "# Notation", "README.md": "", "CONTRIBUTING.md": ""}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    for name, prose in (("a/one", PROSE), ("b/two", "# Two\n\n## A heading\n\nText.")):
        cells = [nbformat.v4.new_code_cell("# On Colab"), nbformat.v4.new_markdown_cell(prose)]
        book = nbformat.v4.new_notebook(cells=cells)
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        file = folder / "chapters" / f"{name}.ipynb"
        file.parent.mkdir(exist_ok=True)
        nbformat.write(book, file)


def build(folder: Path) -> Path:
    """Build the pages; warnings are errors."""
    main = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", main, "build", str(folder), "-n", "-W", "--keep-going", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "_build" / "html"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Address to the pages built with it, and to those without one; the notebooks are written by the tool."""
    unset, known = tmp_path_factory.mktemp("unset"), tmp_path_factory.mktemp("known")
    write_book(unset)
    address.write(unset, "")
    shutil.copytree(unset, known, dirs_exist_ok=True)
    address.write(known, URL)
    assert "https://someone.github.io/attnbook/chapters/b/two.html" in (known / "chapters/a/one.ipynb").read_text()
    return {"": build(unset), URL: build(known)}


@pytest.mark.parametrize("url", ["", URL])
def test_links_of_the_built_book_never_leave_it(url: str, built: dict[str, Path]) -> None:
    """The notebook's absolute links are relative again in the page, to the same headings."""
    links = Links(built[url] / "chapters/a/one.html").article
    assert [link for link in links if not link.startswith("#")] == [
        "../b/two.html#a-heading",
        "../notation.html",
        "https://example.org/a.html",
    ]


@pytest.mark.parametrize("name", ["intro", "chapters/notation", "chapters/a/one", "chapters/b/two"])
def test_buttons_are_there_only_with_an_address(name: str, built: dict[str, Path]) -> None:
    """Those for services lead where each service documents; those for the repository lead into it."""
    unset, known = (Links(built[url] / f"{name}.html").all for url in ("", URL))
    assert [link for link in unset if link.startswith("https://") and "example.org" not in link] == []
    full = launching.settings()
    full["repository"]["url"] = URL
    expected = set(launching.addresses(full, name).values()) if name.startswith("chapters/") else set()
    expected = expected if (built[URL].parents[1] / f"{name}.ipynb").exists() else set()
    services = tuple(filter(None, map(full["launch_buttons"].get, ("colab_url", "binderhub_url"))))
    assert {link for link in known if link.startswith(services)} == expected
    assert URL in known
    assert any(link.startswith(f"{URL}/issues/new") for link in known)
    text = (built[URL] / f"{name}.html").read_text(encoding="utf-8")
    assert f'<link rel="canonical" href="https://someone.github.io/attnbook/{name}.html"' in text


def test_published_links_of_the_chapters_lead_to_pages_and_headings(html: Path) -> None:
    """With an address, each link of a notebook would lead to a page that is built, and to an anchor in it."""
    book, base, wrong = book_address.pages(ROOT), "https://someone.github.io/attnbook/", []
    own = book_address.published_at(address.current(ROOT))
    for path in address.notebooks(ROOT):
        folder = path.parent.relative_to(ROOT).as_posix()
        local = book_address.to_local(path.read_text(encoding="utf-8"), folder, book, own)
        text = book_address.to_published(local, folder, book, base)
        for page, anchor in re.findall(rf"\]\({re.escape(base)}([^()\s#]+)#?([^()\s]*)", text):
            if anchor and f'id="{anchor}"' not in (html / page).read_text(encoding="utf-8"):
                wrong.append(f"{path.name}: {page}#{anchor}")
    assert wrong == []
