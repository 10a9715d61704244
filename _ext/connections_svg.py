"""The diagram of ``{connections}``: a column of chapters for each part, joined where one result leads to another."""

from __future__ import annotations

import textwrap
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from book_map import Chapter, read_map
from docutils import nodes

COLUMN, BOX, ROW, TOP = 172, 150, 46, 44
LONGEST = 18  # letters of a name that fit into a box


class diagram(nodes.General, nodes.Element):
    """Stands for the diagram until the addresses of all pages are known."""


def draw(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the drawing in the place of every diagram."""
    for node in list(doctree.findall(diagram)):
        chapters = read_map(Path(app.srcdir))
        addresses = {name: app.builder.get_relative_uri(docname, c.page) for name, c in chapters.items()}
        node.replace_self(nodes.raw("", write(chapters, addresses), format="html"))


def write(chapters: dict[str, Chapter], addresses: dict[str, str]) -> str:
    """Return the drawing as SVG.

    Args:
        chapters: All chapters by name.
        addresses: Where each chapter's page is, by name.

    Returns:
        HTML: a box that scrolls when it is too narrow, with the drawing inside.
    """
    tops = _tops(chapters)
    places: dict[str, tuple[int, int]] = {}
    for part, (x, y) in tops.items():
        names = [name for name, c in chapters.items() if c.paper == part]
        places |= {name: (x, y + ROW * row) for row, name in enumerate(names)}
    lines = [_line(places[name], places[to], why) for name, c in chapters.items() for to, why in c.next]
    boxes = [_box(chapters[name], place, addresses[name]) for name, place in places.items()]
    heads = [f'<text class="part" x="{x}" y="{y - 22}">Part {i}</text>' for i, (x, y) in enumerate(tops.values(), 1)]
    width, height = (4 + BOX + max(x for x, _ in places.values())), ROW + max(y for _, y in places.values())
    label = "Chapters in columns, one per part; curves join results that continue each other. The table says how."
    return (
        f'<div class="connections"><svg viewBox="0 0 {width} {height}" style="min-width:{0.79 * width:.0f}px" '
        f'role="group" aria-label="{label}">'
        f"{''.join([*lines, *heads, *boxes])}</svg></div>"
    )


def _tops(chapters: dict[str, Chapter]) -> dict[str, tuple[int, int]]:
    """Where the first box of each part is: a column for each part, below the part before where both are short."""
    sizes = Counter(c.paper for c in chapters.values())
    tops, x, row = {}, 4 - COLUMN, max(sizes.values())
    for part, size in sizes.items():
        if row + size > max(sizes.values()):
            x, row = x + COLUMN, 0
        tops[part] = (x, TOP + ROW * row)
        row += size + 1  # and its head
    return tops


def _line(start: tuple[int, int], end: tuple[int, int], why: str) -> str:
    """A curve from the near side of one box to the near side of the other."""
    forward = end[0] > start[0]
    x0, x1 = start[0] + BOX * forward, end[0] + BOX * (not forward)
    y0, y1 = start[1] + 15, end[1] + 15
    bend = max(20, abs(x1 - x0) * 0.4) * (1 if forward else -1)
    path = f"M{x0} {y0}C{x0 + bend:.0f} {y0} {x1 - bend:.0f} {y1} {x1} {y1}"
    return f'<path class="link" d="{path}"><title>{escape(why)}</title></path>'


def _box(chapter: Chapter, place: tuple[int, int], address: str) -> str:
    x, y = place
    lines = textwrap.wrap(chapter.short, LONGEST)
    size = 14 if len(lines) == 1 else 12
    text = "".join(
        f'<text x="{x + 7}" y="{y + 20 + 12 * i - 7 * (len(lines) - 1)}" font-size="{size}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<a href="{escape(address)}"><title>{escape(chapter.question)}</title>'
        f'<rect x="{x}" y="{y}" width="{BOX}" height="30" rx="6"/>'
        f"{text}</a>"
    )
