r"""Read Markdown with formulas in a terminal: ``$\eta=\frac12$`` becomes ``η = 1/2``."""

from __future__ import annotations

import re

__all__ = ["plain"]

NAMES = """alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu pi rho sigma tau phi varphi psi
omega Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega"""
GREEK = dict(zip(NAMES.split(), "αβγδεεζηθκλμνπρστφφψωΓΔΘΛΠΣΦΨΩ", strict=True))
WORDS = GREEK | {
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "sim": "~", "propto": "∝",
    "lesssim": "≲", "gtrsim": "≳", "in": "∈", "to": "→", "mapsto": "↦", "infty": "∞", "pm": "±", "times": "×",
    "cdot": "·", "otimes": "⊗", "odot": "⊙", "sum": "Σ", "prod": "Π", "int": "∫", "nabla": "∇", "partial": "∂",
    "langle": "⟨", "rangle": "⟩", "lfloor": "⌊", "rfloor": "⌋", "vee": "∨", "wedge": "∧", "neg": "¬", "dots": "...",
    "ldots": "...", "top": "ᵀ", "star": "*", "ell": "ℓ", "mid": "|", "prime": "'",
}  # fmt: skip
LOST = r"mathrm|mathbb|mathcal|mathbf|mathsf|operatorname|text|rm|left|right|[bB]igg?[lr]?|displaystyle|limits"
MARKS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304", "dot": "\u0307"}
ONE = r"(\\[a-zA-Z]+|\w)"
GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"


def plain(markdown: str) -> str:
    r"""Return a text as it reads in a terminal.

    Blanks inside short formulas are no-break spaces, so that lines do not break there.

    Args:
        markdown: With ``$LaTeX$`` and names in backquotes.

    Returns:
        One paragraph.

    Example:
        >>> plain(r"At $\eta=\frac12$ the error of $\hat W_h$ is $O(\sqrt H\,n^{-1/2})$.").replace("\xa0", " ")
        'At η = 1/2 the error of Ŵ_h is O(√H n^(-1/2)).'
    """
    pieces = " ".join(markdown.replace("`", "").split()).split("$")
    return "".join(_formula(piece) if i % 2 else piece for i, piece in enumerate(pieces))


def _formula(latex: str) -> str:
    text = re.sub(rf"\\(?:{LOST})(?![a-zA-Z])", "", latex)
    text = re.sub(r"\\[,;:! ]|~|\\q?quad(?![a-zA-Z])", " ", text).replace("{+}", "+").replace(r"\|", "‖")
    text = re.sub(r"\\(hat|tilde|bar|dot)\s*(?:\{(\w)\}|(\\?\w+))", _marked, text)
    for _ in range(4):  # from inside to outside
        text = re.sub(rf"\\[td]?frac\s*(?:{GROUP}|{ONE})\s*(?:{GROUP}|{ONE})", _fraction, text)
        text = re.sub(rf"\\sqrt\s*(?:{GROUP}|{ONE})", lambda m: f"√{_whole(m[1] or m[2])}", text)
    text = re.sub(rf"([_^])\s*{GROUP}", _raised, text)
    text = re.sub(r"\\([a-zA-Z]+) ?", lambda m: WORDS.get(m[1], f" {m[1]} "), text)
    text = re.sub(r"\\([{}%#&_])", r"\1", re.sub(r"(?<!\\)[{}]", "", text)).replace("^ᵀ", "ᵀ").replace("\\", "")
    text = re.sub(r"\s*([=<>≤≥≠≈≲≳∝→↦])\s*", r" \1 ", text)
    text = re.sub(r"\s+", " ", re.sub(r" (?=[)(\]^_])(?<=[a-z] )|(?<=[(\[]) | (?=\))", "", text)).strip()
    return text.replace(" ", "\xa0") if len(text) < 40 else text


def _marked(found: re.Match[str]) -> str:
    """A letter with its mark, as one character or two."""
    import unicodedata

    letter, rest = found[2] or found[3], ""
    if letter[0] == "\\":
        letter = GREEK.get(letter[1:], letter[1:])
    else:
        letter, rest = letter[0], letter[1:]
    return unicodedata.normalize("NFC", letter + MARKS[found[1]]) + rest


def _raised(found: re.Match[str]) -> str:
    """An exponent or index: one letter, a number or, as an index, a word stands alone."""
    text = found[2].strip()
    alone = re.fullmatch(r"\\[a-zA-Z]+|\d+|\w", text) or (found[1] == "_" and text.isalpha())
    return f"{found[1]}{text}" if alone else f"{found[1]}({text})"


def _fraction(found: re.Match[str]) -> str:
    over, under = (one if one is not None else other for one, other in (found.groups()[:2], found.groups()[2:]))
    after = found.string[found.end() : found.end() + 1]
    text = f"{_whole(over)}/{_whole(under)}"
    if re.search(r"\\(log|ln|exp)\s*$", found.string[: found.start()]):
        return f"({text})"
    return text + (" " if after.isalnum() or after == "\\" else "")


def _whole(text: str) -> str:
    """In parentheses, unless it is one letter, name or number, perhaps with a root or an index."""
    text = text.strip()
    alone = re.fullmatch(r"√?(\\[a-zA-Z]+|\w\u0303?(_\w+)?|\d+(\.\d+)?)|√\([^()]*\)", text)
    return text if alone else f"({text})"
