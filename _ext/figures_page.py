"""The directive ``{gallery}``: small pictures of all figures of the book, each leading to its place.

Every figure and claim card of a chapter gets an address, so that other pages can lead to it: a figure the name of its
notebook and ``figure-N``, a claim the label ``shown-ID`` at the section that shows its card. The role
``{shown}`CLAIM``` leads there.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

from book_map import Chapter, read_map
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode
from sphinx.util.osutil import relative_uri

from attnbook import ledger

FIGURE = '<figure class="attnbook-figure"'
CARD = re.compile(r'<tr (?:class="card-head"><td[^>]*><b>|id=")([A-Z]{2}-[^<"]+)')
PICTURE = re.compile(rf'{FIGURE} id="([^"]+)">.*?alt="([^"]*)".*?base64,([^"]+)"', re.DOTALL)
MAIN, SMALL = 560, 240  # pixels across, twice what is shown


class gallery(nodes.General, nodes.Element):
    """Stands for the gallery until all chapters are read."""


@dataclass(frozen=True)
class Figure:
    """A figure of a chapter: its address on the page, its alt text, its PNG file."""

    anchor: str
    alt: str
    png: bytes


class Gallery(SphinxDirective):
    """All figures of the book."""

    def run(self) -> list[nodes.Node]:
        """Return one section per part, so that the contents of the page name the parts."""
        self.env.metadata[self.env.docname]["gallery"] = "yes"
        sections = []
        for number, paper in enumerate(ledger.papers(), 1):
            title = f"Part {number}: {paper.title}"
            head = nodes.section("", nodes.title("", title), gallery(paper=paper.name), ids=[nodes.make_id(title)])
            sections.append(head)
        return sections


class Shown(SphinxRole):
    """A link to the section of a chapter that shows the card of a claim, or else to the claim's chapter."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a link that is resolved when all chapters are read."""
        to = {"refdomain": "", "reftype": "shown", "reftarget": self.text, "refexplicit": False}
        return [addnodes.pending_xref("", nodes.inline(), refdoc=self.env.docname, refwarn=True, **to)], []


def find_shown(app: Any, env: Any, node: addnodes.pending_xref, text: nodes.Node) -> nodes.Node | None:
    """Resolve the role ``{shown}``."""
    if node.get("reftype") != "shown":
        return None
    claim = ledger.claim(node["reftarget"])
    page = f"chapters/{claim.chapter}"
    if page not in env.found_docs:
        return nodes.literal("", claim.chapter)
    title = env.titles[page].astext()
    place = env.get_domain("std").labels.get(f"shown-{claim.id.lower()}")
    anchor = place[1] if place else ""
    words = f"{title} › {place[2]}" if place and place[2] != title else title
    return make_refnode(app.builder, node["refdoc"], page, anchor, nodes.inline("", words))


def number_figures(app: Any, doctree: nodes.document) -> None:
    """Give the figures of a chapter their addresses and note which section shows which claim."""
    docname = app.env.docname
    if not docname.startswith("chapters/") or docname.endswith("/index"):
        return
    count, seen = 0, set()
    for raw in doctree.findall(nodes.raw):
        text = raw.astext()
        if FIGURE in text:
            count += 1
            anchor = f"{docname.rsplit('/', 1)[1].replace('_', '-')}-figure-{count}"
            raw.children = []
            raw += nodes.Text(text.replace(FIGURE, f'{FIGURE} id="{anchor}"', 1))
        for claim in CARD.findall(text):
            section = raw.parent
            while section is not None and not isinstance(section, nodes.section):
                section = section.parent
            if section is not None and claim not in seen and ledger.claim(claim).chapter == docname[len("chapters/") :]:
                seen.add(claim)
                title = section.next_node(nodes.title).astext()
                label = f"shown-{claim.lower()}"
                app.env.get_domain("std").note_hyperlink_target(label, docname, section["ids"][0], title)


def figures(env: Any, docname: str) -> list[Figure]:
    """Return the figures of a chapter in their order, sliders left out."""
    texts = [raw.astext() for raw in env.get_doctree(docname).findall(nodes.raw) if FIGURE in raw.astext()]
    found = [match.groups() for text in texts for match in PICTURE.finditer(text)]
    return [Figure(anchor, unescape(alt), base64.b64decode(data)) for anchor, alt, data in found]


def fill_gallery(app: Any, doctree: nodes.document, docname: str) -> None:
    """Write the small pictures beside the book's other images, and the page that shows them."""
    places = list(doctree.findall(gallery))
    chapters = read_map(Path(app.srcdir)).values() if places else ()
    for place in places:
        html = [_chapter(app, docname, chapter) for chapter in chapters if chapter.paper == place["paper"]]
        place.replace_self(nodes.raw("", "\n".join(html), format="html"))


def _chapter(app: Any, docname: str, chapter: Chapter) -> str:
    """One chapter: its first figure with title and finding, the others in a row below."""
    shown = figures(app.env, chapter.page) if chapter.page in app.env.found_docs else []
    if not shown:
        return ""
    page = app.builder.get_relative_uri(docname, chapter.page)
    title = escape(app.env.titles[chapter.page].astext())
    first = _thumbnail(app, docname, page, shown[0], MAIN)
    others = "".join(_thumbnail(app, docname, page, figure, SMALL) for figure in shown[1:])
    return (
        f'<div class="gallery-chapter"><div class="gallery-main">{first}<p><a href="{page}">{title}</a><br>'
        f'{escape(shown[0].alt)}</p></div><div class="gallery-row">{others}</div></div>'
    )


def _thumbnail(app: Any, docname: str, page: str, figure: Figure, width: int) -> str:
    from PIL import Image

    picture = Image.open(io.BytesIO(figure.png)).convert("RGB")
    picture.thumbnail((width, 2 * width))
    folder = Path(app.outdir) / "_images" / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / f"{figure.anchor}.webp", quality=80)
    source = relative_uri(app.builder.get_target_uri(docname), f"_images/gallery/{figure.anchor}.webp")
    alt = escape(figure.alt, quote=True)
    size = f'width="{picture.width // 2}" height="{picture.height // 2}"'
    return f'<a href="{page}#{figure.anchor}" title="{alt}"><img src="{source}" {size} alt="{alt}" loading="lazy"></a>'


def write_again(app: Any, env: Any) -> list[str]:
    """Name the pages with a gallery: a change in any chapter may change them."""
    return [name for name, meta in env.metadata.items() if "gallery" in meta and name in env.found_docs]


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("gallery", Gallery)
    app.add_role("shown", Shown())
    app.connect("doctree-read", number_figures)
    app.connect("doctree-resolved", fill_gallery)
    app.connect("missing-reference", find_shown)
    app.connect("env-updated", write_again)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
