"""Hands the sidebar the titles of pages alone, which is all that it shows.

Sphinx copies the headings and functions of all pages for the sidebar of each page and drops them again: a fifth of the
time of a build.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from docutils import nodes
from sphinx import addnodes


def title_of(toc: nodes.bullet_list) -> nodes.bullet_list:
    """Return the table of contents of a page without its headings; pages below it stay.

    Args:
        toc: The whole table of contents of the page.
    """
    short = toc.deepcopy()
    for top in short.children:
        if len(top) > 1:  # what Sphinx itself does where only titles are wanted
            if below := list(top.findall(addnodes.toctree)):
                top[1][:] = below
            else:
                top.pop(1)
    return short


@cache
def titles(env: Any) -> dict[str, nodes.bullet_list]:
    """Return the short tables of contents of all pages, made when the first page is written."""
    return {page: title_of(toc) for page, toc in env.tocs.items()}


def give_titles(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the maker of a page's sidebar see the short ones."""
    make = context["toctree"]

    def made(**options: Any) -> str:
        if not options.get("titles_only"):
            return make(**options)
        whole, app.env.tocs = app.env.tocs, titles(app.env)
        try:
            return make(**options)
        finally:
            app.env.tocs = whole

    context["toctree"] = made


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", give_titles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
