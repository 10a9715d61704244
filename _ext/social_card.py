"""What a messenger or a search engine shows of a page: title, first sentences, and a card with the book's name.

The card is drawn when the book is built. Addresses in these tags should be whole: they are where the repository has an
address (``book_address``), else relative.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from docutils import nodes

CARD = "social_card.png"
SIZE = (1200, 630)
PAPER, INK, SOFT, BLUE, GREY = "#fbfaf7", "#1f2328", "#565d68", "#3c8dc5", "#d3d6da"
LONGEST = 200  # characters of a description


def draw(file: Path, title: str, subtitle: str) -> None:
    """Write the card: the attention map of the logo, title and subtitle.

    Args:
        file: The PNG to write.
        title: In large letters.
        subtitle: Below it; a line break starts a new line.
    """
    from PIL import Image, ImageDraw, ImageFont

    card = Image.new("RGB", SIZE, PAPER)
    pen = ImageDraw.Draw(card)
    for row in range(3):
        for column in range(3):
            x, y = 90 + 104 * column, 163 + 104 * row
            pen.rounded_rectangle((x, y, x + 90, y + 90), 14, fill=BLUE if row == column else GREY)
    pen.text((470, 190), title, font=ImageFont.load_default(92), fill=INK)
    pen.text((474, 325), subtitle, font=ImageFont.load_default(38), fill=SOFT, spacing=16)
    file.parent.mkdir(parents=True, exist_ok=True)
    card.save(file, optimize=True)


def describe(doctree: nodes.document | None) -> str:
    """Return the first sentences of a page, cut at a word."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        if not paragraph["classes"] and len(text := " ".join(paragraph.astext().split())) > 40:
            return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"
    return ""


def add_tags(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Write the tags into the head of a page."""
    if "metatags" not in context:
        return
    base = app.config.html_baseurl
    image = f"{base.rstrip('/')}/_static/{CARD}" if base else context["pathto"](f"_static/{CARD}", 1)
    pairs = {
        "og:title": unescape(re.sub(r"<[^>]+>", "", context.get("title") or app.config.html_title)),
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:image": image,
        "og:image:alt": "A three by three attention map beside the name of the book",
        "og:description": describe(doctree),
    }
    tags = [f'<meta property="{name}" content="{escape(value)}">' for name, value in pairs.items() if value]
    tags += ['<meta name="twitter:card" content="summary_large_image">']
    if pairs["og:description"]:
        tags.append(f'<meta name="description" content="{escape(pairs["og:description"])}">')
    context["metatags"] += "\n".join(tags)


def write_card(app: Any, exception: Exception | None) -> None:
    """Draw the card into the finished book."""
    if exception is None and app.builder.format == "html":
        subtitle = "How attention learns:\nfive papers, run on your machine"
        draw(Path(app.outdir) / "_static" / CARD, app.config.html_title, subtitle)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_tags)
    app.connect("build-finished", write_card)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
