"""Put the chapters of the built book on one long page, to print it or to save it as PDF.

``python tools/one_page.py [HTML]`` reads ``_build/html``, or the folder HTML, and writes ``print.html`` there; with
``--pdf`` also ``attnbook.pdf``. The text is that of the built pages, so there is no second source. Reference pages are
left out; links to them stay links.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import chromium
import yaml

PATIENCE = 600_000  # milliseconds: thousands of formulas
ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("reference/api", "reference/claims", "reference/gallery", "reference/performance", "genindex")
TAG = re.compile(r"<[a-zA-Z][^>]*>")
ADDRESS = re.compile(r'\s(id|href|src|for|aria-labelledby)="([^"]*)"')
HIDDEN = re.compile(r"<img\b[^>]*\shidden\b[^>]*>")  # the pictures of a slider that are not shown
STYLES = re.compile(r'<link [^>]*rel="stylesheet"[^>]*>')
MATHJAX = re.compile(r"<script[^>]*>window\.MathJax = .*?</script>|<script[^>]*mathjax/tex-chtml\.js[^>]*></script>")


def main() -> int:
    """Write the page and say where it is.

    Returns:
        0, or 1 when the book is not built.
    """
    parser = argparse.ArgumentParser(description="Put the chapters of the built book on one page.")
    parser.add_argument("html", nargs="?", type=Path, default=ROOT / "_build" / "html", help="folder of the built book")
    parser.add_argument("--pdf", action="store_true", help="print the page to attnbook.pdf")
    options = parser.parse_args()
    html = options.html
    if not (html / "intro.html").is_file():
        print(f"no book in {html}: build it first, with `make book`")
        return 1
    page = html / "print.html"
    page.write_text(one_page(html, pages()), encoding="utf-8")
    if options.pdf:
        print_to(html / "attnbook.pdf", page)
        print(f"the book is in {os.path.relpath(html / 'attnbook.pdf')}")
        return 0
    print(f"open {os.path.relpath(page)} in a browser, wait until all formulas are typeset, and print it or save it")
    return 0


def print_to(pdf: Path, page: Path) -> None:
    """Print a page with a headless Chromium, with its headings as bookmarks and numbers below the pages.

    Args:
        pdf: The file to write.
        page: The page.
    """
    from playwright.sync_api import sync_playwright

    number = '<p style="font-size: 8px; width: 100%; text-align: center"><span class="pageNumber"></span></p>'
    with sync_playwright() as play:
        browser = chromium.launch(play)
        tab = browser.new_page()
        tab.set_default_timeout(PATIENCE)
        tab.goto(page.resolve().as_uri(), wait_until="load")
        chromium.settle(tab)
        made = tab.pdf(
            format="A4",
            tagged=True,
            outline=True,
            display_header_footer=True,
            header_template="<p></p>",
            footer_template=number,
        )
        pdf.write_bytes(made)
        browser.close()


def pages() -> list[str]:
    """Return the names of the pages to print, in the order of the contents."""

    def files(entry: dict) -> list[str]:
        below = [inner for key in ("chapters", "sections") for inner in entry.get(key, [])]
        return ([entry["file"]] if "file" in entry else []) + [name for inner in below for name in files(inner)]

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = [toc["root"], *(name for part in toc["parts"] for name in files(part))]
    return [name for name in found if not name.startswith(LEFT_OUT)]


def one_page(html: Path, names: list[str]) -> str:
    """Return the articles of these pages as one page.

    Args:
        html: Folder of the built book.
        names: Pages, without suffix.

    Returns:
        HTML; addresses inside are unique, links between these pages stay within the page.
    """
    texts = {name: (html / f"{name}.html").read_text(encoding="utf-8") for name in names}
    first = texts[names[0]]  # the root page: its style sheets and formulas serve all
    head = "\n".join([*STYLES.findall(first), *MATHJAX.findall(first)])
    body = "\n".join(
        f'<article class="bd-article" id="{_key(name)}">{_moved(_article(text), name, set(names))}</article>'
        for name, text in texts.items()
    )
    return (
        '<!DOCTYPE html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>attnbook</title>{head}<style>.bd-article {{ break-before: page; }}"
        "body { max-width: 52rem; margin: auto; padding: 1rem; }</style></head>"
        f'<body><div class="bd-content"><main>{body}</main></div></body></html>'
    )


def _article(text: str) -> str:
    start = text.index('<article class="bd-article">') + len('<article class="bd-article">')
    article = text[start : text.rindex("</article>")]
    article = re.sub(r"<script.*?</script>", "", article, flags=re.DOTALL)
    return HIDDEN.sub("", article).replace("<details", "<details open")


def _moved(article: str, name: str, printed: set[str]) -> str:
    """Give all addresses of an article the place they have on the long page."""
    here = posixpath.dirname(name)

    def address(match: re.Match[str]) -> str:
        kind, value = match.groups()
        if kind in ("id", "for", "aria-labelledby"):
            return f' {kind}="{_key(name)}--{value}"'
        parts = urlsplit(value)
        if parts.scheme or parts.netloc:
            return match[0]
        path = posixpath.normpath(posixpath.join(here, parts.path)) if parts.path else f"{name}.html"
        target, anchor = path.removesuffix(".html"), unquote(parts.fragment)
        if kind == "href" and target in printed:
            return f' href="#{_key(target)}{"--" + anchor if anchor else ""}"'
        return f' {kind}="{path}{"#" + parts.fragment if anchor else ""}"'

    return TAG.sub(lambda tag: ADDRESS.sub(address, tag[0]), article)


def _key(name: str) -> str:
    return name.replace("/", "-")


if __name__ == "__main__":
    sys.exit(main())
