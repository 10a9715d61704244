"""The package as a whole: light to import, documented, arrows one way, shapes checked."""

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import jaxtyping
import numpy as np
import pytest
import torch
import yaml
from each import each
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.version import Version

import attnbook
from attnbook.core.experiment import Experiment
from attnbook.global_attention.masks import Teacher
from attnbook.global_attention.two_layer import predict
from attnbook.rooms import rooms

ROOT = Path(__file__).parent.parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(attnbook.__path__, "attnbook."))
HEAVY = {"distributed", "matplotlib", "ipywidgets", "scipy", "sklearn", "simpleeval", "typer", "IPython", "sphinx"} | {
    "PIL",
    "pooch",
    "requests",
    "rich",
    "torch._dynamo",  # torch's compiler, which the first `torch.optim.Optimizer` of a process loads
}
LABELLED = {"xarray", "pandas"}  # what experiments return
SECTION = re.compile(r"^(\w+):\n((?:    .*\n|\n)+)", re.MULTILINE)


def public(module):
    """(name, object) of everything that a module offers, methods of classes included."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        yield name, value
        if inspect.isclass(value):
            for inner, member in vars(value).items():
                member = getattr(member, "__func__", member)  # a classmethod
                if inspect.isfunction(member) and not inner.startswith("_"):
                    yield f"{name}.{inner}", member


PUBLIC = {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in public(importlib.import_module(module))
    if getattr(value, "__module__", None) == module
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
DATACLASSES = {name: value for name, value in PUBLIC.items() if dataclasses.is_dataclass(value)}


def listed(value, section):
    """Names under a section of a docstring; None without the section."""
    sections = dict(SECTION.findall(inspect.cleandoc(value.__doc__) + "\n"))
    if section not in sections:
        return None
    return re.findall(r"^    (\*{0,2}\w+): ", sections[section], re.MULTILINE)


def test_there_is_something_to_test():
    assert len(MODULES) > 15
    assert len(FUNCTIONS) > 50
    assert len(DATACLASSES) > 15


def test_every_name_in_all_exists_and_every_module_says_what_it_is():
    def check(module):
        loaded = importlib.import_module(module)
        assert loaded.__doc__
        assert [name for name in getattr(loaded, "__all__", ()) if not hasattr(loaded, name)] == []

    each(["attnbook", *MODULES], check)


def test_everything_public_says_what_it_is():
    def check(name):
        value = PUBLIC[name]
        if callable(value):
            assert value.__doc__
            assert not value.__doc__.startswith(value.__name__ + "(")  # what a dataclass writes by itself

    each(PUBLIC, check)


def test_documented_arguments_are_those_of_the_signature():
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

    def check(name):
        parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
        expected = [stars.get(p.kind, "") + p.name for p in parameters if p.name not in ("self", "cls")]
        assert listed(FUNCTIONS[name], "Args") in (None, expected)

    each(FUNCTIONS, check)


def test_documented_attributes_are_the_fields():
    each(DATACLASSES, documents_its_fields)


def documents_its_fields(name):
    """In a section of the docstring or each beside its field; a setting of an experiment in a comment beside it."""
    kind = DATACLASSES[name]
    if inspect.isclass(kind) and issubclass(kind, Experiment) and kind is not Experiment:
        bare = re.findall(r"^    (\w+): (?!ClassVar)[^#]*$", inspect.getsource(DATACLASSES[name]), re.MULTILINE)
        assert set(bare) <= {"seeds", "chunk"}
        return
    own = [f.name for f in dataclasses.fields(DATACLASSES[name]) if f.name in DATACLASSES[name].__annotations__]
    source = inspect.getsource(DATACLASSES[name])
    beside = re.findall(r"^    (?=#: .*\n    \w+: |\w+: .*  #: )(?:#: .*\n    )?(\w+): ", source, re.MULTILINE)
    assert own in (listed(DATACLASSES[name], "Attributes") or [], beside)


@pytest.mark.parametrize(
    ("statement", "needed"),
    [
        ("import attnbook, attnbook.data, attnbook.core.results", set()),
        ("from attnbook.registry import experiments; experiments()", {"torch", "numpy", *LABELLED}),
    ],
)
def test_a_machine_that_only_trains_loads_no_more_than_it_needs(statement, needed):
    code = f"{statement}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))  # packages stand there by their own names, too
    assert needed <= loaded
    assert loaded & (HEAVY | LABELLED) == LABELLED & needed


def test_help_and_claims_are_printed_without_what_trains():
    """Of the command line and all its commands; what is loaded counts, not the time, which depends on the machine."""
    code = """
import json, sys
from typer.main import get_command
from typer.testing import CliRunner
import attnbook.__main__
from attnbook.cli import app

def names(command, before=()):
    yield before
    for name, one in getattr(command, "commands", {}).items():
        yield from names(one, (*before, name))

asked = [[*one, "--help"] for one in names(get_command(app))] + [["show", "GA-TAB1"], ["show", "GA-TAB1", "--json"]]
done = [CliRunner().invoke(app, one) for one in asked]
assert len(done) > 10 and not any(one.exit_code for one in done), [one.output for one in done if one.exit_code]
print(json.dumps(list(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    trains = {"torch", "numpy", "joblib"} | LABELLED | HEAVY - {"typer", "rich", "simpleeval"}
    assert set(json.loads(done.stdout)) & trains == set()


def test_training_does_not_import_torchs_compiler():
    """Which takes longer than most trainings here; in a process of its own, where nothing else has imported it."""
    code = """
import sys, torch
from attnbook.core import ensemble, update_rules
from attnbook.mirror_descent.optimizer import MirrorRule
from attnbook.preconditioning.optimizer import MuonLike
ours = update_rules.SGD(0.1), update_rules.SGD(0.1, 0.9), update_rules.Adam(0.1)
for rule in *ours, MirrorRule(0.1, 3.0), MuonLike(0.1):
    loss = ensemble.autograd(lambda p, _: p["w"].square().sum((1, 2)))
    ensemble.train(loss, {"w": torch.ones(2, 3, 3)}, lambda _: None, optimizer=rule, steps=2, record=lambda p: p)
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_type_checkers_of_other_projects_may_use_the_annotations():
    """The marker that PEP 561 asks for lies in the package, and the wheel takes the whole folder."""
    assert (ROOT / "attnbook" / "py.typed").read_bytes() == b""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert wheel["wheel"]["packages"] == ["attnbook"]
    assert not {"exclude", "only-include", "force-include"} & wheel["wheel"].keys()  # neither claims nor results


def test_the_version_is_the_installed_one():
    assert attnbook.__version__ == importlib.metadata.version("attnbook")


def requirements(lines):
    """Name to what is asked for."""
    return {r.name: r for r in map(Requirement, lines)}


COLAB = requirements(
    line.split("#")[0]
    for line in (ROOT / "binder" / "colab.txt").read_text(encoding="utf-8").splitlines()
    if line[:1].isalpha()
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEEDED = requirements(PROJECT["dependencies"])


def test_the_chapters_run_on_colab_at_the_lower_bounds():
    """Else a bound is untried, or the first cell replaces what Colab has loaded, and Colab asks for a restart."""
    each(NEEDED, pinned_at_its_lower_bound)


def pinned_at_its_lower_bound(name):
    (lowest,) = (s.version for s in NEEDED[name].specifier if s.operator == ">=")
    (pinned,) = COLAB[name].specifier
    assert pinned.operator == "=="
    assert NEEDED[name].specifier.contains(pinned.version)
    if name != "torch":  # its older builds are gigabytes; the chapters run with the one that this book is tested with
        assert Version(pinned.version) == Version(lowest)


def test_the_package_does_not_need_the_book():
    """Whoever installs the package gets no Jupyter Book, no tests and no JupyterLab."""
    listed = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    of_the_book = {Requirement(line).name for line in listed if line[:1].isalpha()} - {"torch"}
    assert len(of_the_book) > 10
    assert NEEDED.keys() & of_the_book == set()


def test_the_arrows_between_modules_go_one_way(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{" | ".join(rooms().values())}"' in contracts  # all on one layer: no room imports another
    assert lint_imports(no_cache=True) == 0, capsys.readouterr().out


def test_a_rooms_library_knows_no_chapter_and_no_chapter_another():
    """Folders of chapters stand on the room's library."""
    graph = grimp.build_graph("attnbook", cache_dir=None)
    for room in rooms().values():
        chapters = {m for m in graph.find_children(room) if f"{m}.figures" in graph.modules}
        for module in graph.find_descendants(room):
            home = next((c for c in chapters if module == c or module.startswith(f"{c}.")), None)
            for imported in graph.find_modules_directly_imported_by(module):
                there = next((c for c in chapters if imported == c or imported.startswith(f"{c}.")), home)
                assert there == home, f"{module} imports {imported}"


def test_shapes_are_checked_while_tests_run():
    """Guards the hook in conftest.py: arguments and fields of the wrong shape are refused."""
    parameters = {"mask": torch.ones(2, 3), "hidden": torch.ones(2, 5, 3), "decoder": torch.ones(2, 7, 5)}
    assert predict(parameters, torch.ones(2, 11, 3), torch.relu).shape == (2, 7, 11)
    with pytest.raises(jaxtyping.TypeCheckError):
        predict(parameters, torch.ones(11, 3), torch.relu)
    with pytest.raises(jaxtyping.TypeCheckError):
        Teacher(np.ones(3), np.ones((5, 3)), np.ones((7, 2)))


def test_citation_file_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == attnbook.__version__
    assert cited["title"].startswith("attnbook")


MAKERS = {
    "arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint",
    "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
TYPED = {"empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "scalar_tensor", "zeros"}
"""What makes tensors, and which of them makes numbers of the default type; `from_numpy` heeds no default."""


def test_tensors_are_made_on_a_named_device_and_of_a_named_type():
    """So that nothing depends on `torch.set_default_device` and `torch.set_default_dtype`."""

    def check(file):
        bare = []
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and (found := re.fullmatch(r"torch\.(\w+)", ast.unparse(call.func))):
                given = {keyword.arg for keyword in call.keywords}
                needed = {name for name, makers in (("device", MAKERS), ("dtype", TYPED)) if found[1] in makers}
                bare += [f"line {call.lineno}: {found[0]} without {name}" for name in sorted(needed - given)]
        assert bare == []

    each(sorted(Path(attnbook.__file__).parent.rglob("*.py")), check)
