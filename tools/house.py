"""Count the house in tokens: a reader pays for names and operators, whatever the width of a line.

``python tools/house.py [--strict]``; with ``--strict`` it fails if a budget is passed. A token is a name, operator,
number or string of Python's own tokenizer; comments, docstrings and layout are free.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = {
    "library tokens": 65_000,  # attnbook: what people install and import
    "script tokens": 115_000,  # chapters/<paper>/<chapter>.py
    "test tokens": 110_000,
    "tool tokens": 45_000,  # tools, _ext, benchmarks
    "longest file": 480,
    "longest script": 450,
    "function, 90th percentile": 30,
    "fmt: skip": 10,
    "widest line": 100,
}
KINDS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


def tokens(source: str) -> int:
    """Return the number of tokens of a module outside docstrings."""
    free: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            free |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type in KINDS and token.start[0] not in free for token in found)


def measured(root: Path) -> dict[str, int]:
    """Return what the budgets are about, for the files of a checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    sources = {name: (root / name).read_text(encoding="utf-8") for name in listed.split() if (root / name).exists()}

    def inside(*folders: str) -> dict[str, str]:
        return {name: source for name, source in sources.items() if name.startswith(folders)}

    library, scripts = inside("attnbook/"), inside("chapters/")
    code = {**library, **scripts}
    functions = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for source in code.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    )
    found = (library, scripts, inside("tests/"), inside("tools/", "_ext/", "benchmarks/"))
    counts = [sum(map(tokens, group.values())) for group in found]
    rest = [
        max(len(source.splitlines()) for source in library.values()),
        max((len(source.splitlines()) for source in scripts.values()), default=0),
        functions[int(0.9 * len(functions))],
        sum(len(re.findall("# fmt: skip", source)) for source in code.values()),
        max(len(line) for source in code.values() for line in source.splitlines()),
    ]
    return dict(zip(BUDGETS, [*counts, *rest], strict=True))


def main(arguments: list[str]) -> int:
    """Print each number beside its budget.

    Args:
        arguments: ``--strict``, or nothing.

    Returns:
        0, or with ``--strict`` 1 if a budget is passed.
    """
    parser = argparse.ArgumentParser(description="Count the house in tokens, beside its budgets.")
    parser.add_argument("--strict", action="store_true")
    strict, found = parser.parse_args(arguments).strict, measured(ROOT)
    for name, value in found.items():
        print(f"{name:26} {value:8,} of {BUDGETS[name]:,}{'' if value <= BUDGETS[name] else '   over'}")
    return int(strict and any(value > BUDGETS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
