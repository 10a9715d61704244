"""How the chapters of the third edition read: floors and ceilings that catch a style; readers decide what is good.

Counts are per 1,000 words of prose: Markdown cells without formulas, code, link targets and what is folded. The limits
were measured with the same expressions on the best pages of the genre.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHAPTERS = [
    "global_attention/counting",
    "global_attention/noisy_mnist",
    "global_attention/sample_complexity",
    "global_attention/sharpness",
    "global_attention/self_attention",
    "implicit_bias/max_margin_direction",
    "multi_head/curvature",
    "multi_head/how_many_heads",
    "multi_head/one_good_step",
    "multi_head/polylog_heads",
    "multi_head/separation",
    "softmax_ntk/diffusion",
    "softmax_ntk/kernel_regression",
    "softmax_ntk/kernel_stability",
    "softmax_ntk/lazy_training",
    "softmax_ntk/softmax_network",
    "softmax_ntk/to_self_attention",
]
PATTERNS = {
    "connectives": (
        r"\b(because|therefore|hence|thus|so that|since|for example|for instance|that is|in other words|in particular"
        r"|recall|remember|imagine|suppose|notice|note that|consider|let us|let's|we now|now we|first|next|then|finally"
        r"|intuitively|to see|why|means|mean that|turns out|however|but|although|while|instead|as we)\b"
    ),
    "reader": r"[^a-z](you|your|we|our|us|let.s)[^a-z]",
    "examples": r"for example|for instance|e\.g\.|such as|imagine|suppose|think of",
    "formulas": "MATH",
    "parentheses": r"\(",
}
CLAIM_ID = r"\b(?:GA|MH|MD|SN|PC|IB)-[A-Z0-9][\w.+\-]*"
BANNED = (
    r"\bstands? (?:in|on|above|below|at|among|beside)\b|in the place of|must stand|million million|, too\."
    r"|networks as they come|text available to us|\bfrom [^.,;]{1,25} on\b|\b(?:asks?|asked) for\b|\bthe card\b"
    r"|\bour reading\b|\bcome out\b"
)
LIMITS = {
    "words": (0, 2300), "in short": (25, 80), "claim ids": (0, 0), "banned": (0, 2), "connectives": (17, 100),
    "reader": (12, 100), "examples": (1.5, 100), "formulas": (0, 45), "parentheses": (0, 12), "visible checks": (0, 1),
}  # fmt: skip
FOLDED = r":::\{[^}]*\}[^\n]*\n(?::[a-z]+:[^\n]*\n)*?:class:[^\n]*dropdown.*?\n:::"


LINES = r"^:::.*$|^:[a-z]+:.*$|^\([a-z0-9\-]+\)=$"


def prose(text):
    for pattern, new in [
        (FOLDED, " "),
        (r"```.*?```|\$\$.*?\$\$(\s*\([a-z\-0-9]+\))?|<[^>]+>|\{[a-z:]+\}`[^`]*`", " "),
        (r"\$[^$]*\$", "MATH"),
        (r"`[^`]*`", "CODE"),
        (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
        (LINES, ""),
        (r"[*_#>|]", " "),
    ]:
        text = re.sub(pattern, new, text, flags=re.MULTILINE if pattern == LINES else re.DOTALL)
    return text


def words(text):
    return len(re.findall(r"[A-Za-z][A-Za-z'’\-]*", text))


def measured(cells):
    markdown = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text, short = prose(markdown), re.search(r"\*\*In short[.:]?\*\*[:.]?(.*?)(?:\n\n|$)", markdown, re.DOTALL)
    hidden = {"hide-cell", "hide-input", "remove-cell"}
    code = [c for c in cells if c["cell_type"] == "code" and not hidden & {*c["metadata"].get("tags", [])}]
    counts = {name: len(re.findall(pattern, text, re.IGNORECASE)) for name, pattern in PATTERNS.items()}
    return {name: 1000 * count / words(text) for name, count in counts.items()} | {
        "words": words(text),
        "in short": words(prose(short[1])) if short else 0,
        "claim ids": len(re.findall(CLAIM_ID, text)),
        "banned": len(re.findall(BANNED, text, re.IGNORECASE)),
        "visible checks": sum("ledger.check" in "".join(cell["source"]) for cell in code),
    }


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_reads_within_the_limits(chapter):
    found = measured(json.loads((ROOT / "chapters" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"])
    outside = {name: found[name] for name, (least, most) in LIMITS.items() if not least <= found[name] <= most}
    assert not outside


def cell(text, kind="markdown"):
    return {"cell_type": kind, "source": [text], "metadata": {}}


def test_the_limits_see_what_they_are_for():
    bad = cell("See MH-T1 (a) (b). It stands in the ledger. We asked for $x$ and $y$.\n\n**In short.** Too short.")
    found = measured([bad, cell("ledger.check(a)", "code"), cell("ledger.check(b)", "code")])
    assert found["claim ids"] == 1
    assert found["banned"] == 2
    assert found["in short"] == 2
    assert found["visible checks"] == 2
    assert found["formulas"] == found["parentheses"] > 45
    folded = cell("One two.\n\n:::{solution} x\n:class: dropdown\n\nThree four five.\n:::\n\nSix.")
    assert measured([folded])["words"] == 3
