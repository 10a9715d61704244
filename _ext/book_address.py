"""Where the book is published, and links between its pages that hold there and here.

The address of the repository is ``repository: url`` of ``_config.yml``; ``tools/address.py`` writes it. With one, links
of notebooks lead to the published book, because a notebook that is open in Colab has no neighbours. When the book is
built they lead to its own pages again, so that the HTML never leaves itself. Without one there are no buttons that need
it, for services and for the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = re.compile(r"https://github\.com/([A-Za-z0-9][A-Za-z0-9-]*)/([A-Za-z0-9._-]+?)(?:\.git)?/?")
LINK = re.compile(r"(?<=\]\()([^()\s#]+\.(?:ipynb|md))(?=[)#\s])")


def published_at(repository: str) -> str:
    """Return where GitHub publishes the pages of a repository.

    Args:
        repository: Its address, or nothing.

    Returns:
        An address that ends in a slash; nothing without a repository.

    Raises:
        ValueError: If this is no address of a repository on GitHub.

    Example:
        >>> published_at("https://github.com/someone/attnbook")
        'https://someone.github.io/attnbook/'
    """
    if not repository:
        return ""
    parts = REPOSITORY.fullmatch(repository)
    if parts is None:
        raise ValueError(f"URL: expected an address such as https://github.com/someone/attnbook, got {repository!r}")
    owner, name = parts[1].lower(), parts[2]
    home = f"{owner}.github.io"
    return f"https://{home}/" if name.lower() == home else f"https://{home}/{name}/"


def pages(root: Path) -> dict[str, str]:
    """Return the pages that the table of contents names.

    Args:
        root: Folder of the book.

    Returns:
        Page, without suffix, to the file that it is made from; both relative to the folder.
    """
    names = re.findall(r"(?:file|root): (\S+)", (root / "_toc.yml").read_text(encoding="utf-8"))
    files = ((name, f"{name}{suffix}") for name in names for suffix in (".ipynb", ".md"))
    return {name: file for name, file in files if (root / file).is_file()}


def to_published(text: str, folder: str, book: dict[str, str], base: str) -> str:
    """Let the links to pages of the book lead to where it is published.

    Args:
        text: Markdown, or the JSON of a notebook.
        folder: Where its file lies in the book.
        book: What :func:`pages` returns.
        base: What :func:`published_at` returns.

    Returns:
        The text; unchanged where the book is not published.

    Example:
        >>> to_published("[a](../b/a.md#c)", "d", {"b/a": "b/a.md"}, "https://someone.github.io/attnbook/")
        '[a](https://someone.github.io/attnbook/b/a.html#c)'
    """
    names = {file: name for name, file in book.items()}

    def address(link: re.Match[str]) -> str:
        name = names.get(posixpath.normpath(posixpath.join(folder, link[0])))
        return f"{base}{name}.html" if name else link[0]

    return LINK.sub(address, text) if base else text


def to_local(text: str, folder: str, book: dict[str, str], base: str) -> str:
    """Undo :func:`to_published`.

    Args:
        text: Markdown, or the JSON of a notebook.
        folder: Where its file lies in the book.
        book: What :func:`pages` returns.
        base: What :func:`published_at` returns.

    Returns:
        The text, with relative links.

    Example:
        >>> book, base = {"b/a": "b/a.md"}, "https://someone.github.io/attnbook/"
        >>> to_local("[a](https://someone.github.io/attnbook/b/a.html#c)", "d", book, base)
        '[a](../b/a.md#c)'
    """

    def address(link: re.Match[str]) -> str:
        file = book.get(link[1])
        return posixpath.relpath(file, folder or ".") if file else link[0]

    return re.sub(rf"(?<=\]\(){re.escape(base)}([^()\s#]+)\.html(?=[)#\s])", address, text) if base else text


def use_address(app: Any, config: Any) -> None:
    """Say where the book is published, or leave out the buttons that cannot work without an address."""
    options = config.html_theme_options
    known = bool(options.get("repository_url"))
    config.html_baseurl = published_at(options.get("repository_url", ""))
    options["use_repository_button"] = options["use_issues_button"] = known
    if not known:
        options.pop("launch_buttons", None)


def stay_inside(app: Any, name: str, source: list[str]) -> None:
    """Let links of a page to the published book lead to the pages that are being built."""
    source[0] = to_local(source[0], posixpath.dirname(name), pages(Path(app.srcdir)), app.config.html_baseurl)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", use_address)
    app.connect("source-read", stay_inside)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
