"""What the sources must not do: run what they read, unpickle, start a shell, fetch without a checksum."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from each import each

from attnbook.data.files import KNOWN

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    file.relative_to(ROOT).as_posix()
    for folder in ("attnbook", "_ext", "tools", "benchmarks", "reference")
    for file in (ROOT / folder).rglob("*.py")
)
NEVER = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle", "cPickle", "dill", "joblib"),
    *("marshal", "shelve", "torch.load", "pandas.read_pickle", "pd.read_pickle", "yaml.load", "yaml.unsafe_load"),
    *("xml.etree", "telnetlib", "ftplib"),
}
NETWORK = {"urllib.request", "http.client", "requests", "pooch", "socket", "httpx", "aiohttp"}
# Each with its reason.
EXCEPTIONS = {
    ("_ext/search_order.py", "pickle"): "writes Sphinx's own file of its environment once more; reads none",
    ("attnbook/data/downloading.py", "pooch"): "the one place that fetches, by SHA-256",
    ("attnbook/data/downloading.py", "requests"): "the names of its errors",
    ("attnbook/lab.py", "joblib"): "hands groups of seeds to processes of its own; reads no file of it",
    ("tools/new_paper/tests/paper_name/test_paper_name.py", "exec"): "a test to be: runs cells of its own notebook",
    ("tools/torch_index.py", "urllib.request"): "asks whether pip's index answers; keeps nothing",
}


def dotted(node):
    """``a.b.c`` of a name or an attribute, else nothing."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def used(source):
    """Modules that a source imports, and functions that it calls, by their dotted names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            yield dotted(node.func)
            for word in node.keywords:
                if isinstance(word.value, ast.Constant) and (word.arg, word.value.value) in RISKY_OPTIONS:
                    yield f"{word.arg}={word.value.value}"


RISKY_OPTIONS = {("shell", True), ("allow_pickle", True), ("weights_only", False), ("verify", False)}
RISKY = {f"{name}={value}" for name, value in RISKY_OPTIONS}


def found(source):
    """What of the forbidden and of the network a source uses."""
    names = set(used(source))
    return {
        *(one for one in NEVER | NETWORK if any(n == one or n.startswith(f"{one}.") for n in names)),
        *(RISKY & names),
    }


def test_sources_run_nothing_they_read_and_fetch_nothing_unchecked():
    def check(name):
        exceptions = {one for file, one in EXCEPTIONS if file == name}
        assert found((ROOT / name).read_text(encoding="utf-8")) - exceptions == set()

    each(SOURCES, check)


def test_every_exception_is_needed():
    for name, one in EXCEPTIONS:
        assert one in found((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "eval(text)",
        "import pickle",
        "from torch import load",
        "import torch\ntorch.load(f)",
        "from urllib import request",
        "np.load(f, allow_pickle=True)",
        "subprocess.run(command, shell=True)",
        "import yaml\nyaml.load(f)",
    ],
)
def test_what_is_forbidden_is_noticed(source):
    assert found(source)


@pytest.mark.parametrize("source", ["model.eval()", "SimpleEval().eval(rule)", "re.compile('a')", "np.load(f)"])
def test_what_is_harmless_is_not(source):
    assert found(source) == set()


def test_every_download_has_a_checksum_and_an_encrypted_address():
    assert KNOWN
    for file in KNOWN.values():
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert not file.url or file.url.startswith("https://")


def test_the_locked_versions_are_audited_before_the_book_is_published():
    """All of the lock, and torch, which the lock leaves out."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["publish"]["steps"]
    audit = next(number for number, step in enumerate(steps) if "pip-audit" in step.get("run", ""))
    deploy = next(number for number, step in enumerate(steps) if "deploy-pages" in step.get("uses", ""))
    assert audit < deploy
    assert "-r requirements.lock" in steps[audit]["run"]
    # else it passes where the service knows none of the packages, or does not answer for one
    assert steps[audit]["run"].count("pip-audit --strict ") == 2
    assert re.search(r"^torch==", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert "^torch==" in steps[audit]["run"]
