"""The examples of "Use it in your work" run in an empty folder and print what the page shows."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import examples
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")
PAGE = (ROOT / "reference" / "use_it.md").read_text(encoding="utf-8")
IMPORTED_AS = {"scikit-learn": "sklearn"}


@pytest.mark.slow
@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_an_example_prints_what_the_page_shows(name):
    """The same words, and numbers that differ at most by what processors differ in after hundreds of steps."""
    got, shown = examples.run(name), (examples.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert NUMBER.sub("0", got) == NUMBER.sub("0", shown)
    numbers, expected = ([float(n) for n in NUMBER.findall(text)] for text in (got, shown))
    np.testing.assert_allclose(numbers, expected, rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_an_example_needs_what_the_package_installs_and_no_more(name):
    tree = ast.parse((examples.FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.match(r"[\w-]+", one).group() for one in project["dependencies"]]
    allowed = {"attnbook", *sys.stdlib_module_names, *(IMPORTED_AS.get(one, one) for one in needed)}
    assert {one.partition(".")[0] for one in names} <= allowed


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_an_example_is_short_and_stands_on_the_page_with_its_output(name):
    lines = (examples.FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 45
    assert f"{{literalinclude}} use_it/{name}.py" in PAGE
    assert f"{{literalinclude}} use_it/{name}.txt" in PAGE
