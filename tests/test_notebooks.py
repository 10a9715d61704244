"""The stored notebooks, and the proof that a wrong one would be noticed."""

import json
import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import address
import launching
import own_cells
import pytest
from kernels import in_a_kernel

from attnbook.core import runtime, widgets
from attnbook.registry import experiments

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted((ROOT / "chapters").glob("*/*.ipynb"))
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg")]


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


@pytest.fixture(scope="module")
def tracked():
    """The files that are, or would be, in the repository; all files where there is no repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "chapters"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return set(listed.stdout.split()) or {path.relative_to(ROOT).as_posix() for path in CHAPTERS}


@cache
def text(path):
    return path.read_text(encoding="utf-8")


@cache
def notebook(path):
    """What a stored notebook holds; to look at only, since it is read once."""
    return json.loads(text(path))


def code_cells(path):
    return [cell for cell in notebook(path)["cells"] if cell["cell_type"] == "code"]


def outputs(path):
    return [output for cell in code_cells(path) for output in cell["outputs"]]


@cache
def shown(path):
    """All HTML and text that a reader sees as output."""
    texts = []
    for output in outputs(path):
        data = output.get("data", {})
        texts += [
            "".join(output.get("text", "")),
            "".join(data.get("text/html", "")),
            "".join(data.get("text/plain", "")),
        ]
    return "\n".join(texts)


def test_there_is_a_chapter():
    assert CHAPTERS


def test_stored_outputs_are_those_of_one_clean_run(chapter):
    """Executed in order on a fresh kernel, without an error or a line on stderr."""
    counts = [cell["execution_count"] for cell in code_cells(chapter)]
    assert counts == list(range(1, len(counts) + 1))
    for output in outputs(chapter):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"


def test_the_first_two_cells_are_written_by_the_tool_and_say_nothing(chapter):
    """They are hidden in the book, and silent outside Colab."""
    first, second = code_cells(chapter)[:2]
    assert "".join(first["source"]) == own_cells.first_cell(address.current(ROOT), chapter), "run: make address"
    assert "".join(second["source"]) == own_cells.USE
    assert first["metadata"]["tags"] == ["parameters", "remove-cell", "nbval-ignore-output"]
    assert second["metadata"]["tags"] == ["remove-cell", "nbval-ignore-output"]
    assert first["outputs"] == second["outputs"] == []


def test_the_tool_changes_its_cells_and_folds_and_nothing_else(chapter, tmp_path):
    before = json.loads(text(chapter))
    before["cells"][0]["source"] = ["# On Colab\n", "import sys"]
    del before["cells"][1]
    for cell in before["cells"]:
        cell["metadata"].pop("jupyter", None)
    copy = tmp_path / chapter.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps(before), encoding="utf-8")
    if (script := chapter.with_suffix(".py")).exists():
        copy.with_suffix(".py").symlink_to(script)
    for folder in ("attnbook", "results"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    after, expected = json.loads(own_cells.with_own_cells(copy, address.current(ROOT))), json.loads(text(chapter))
    for each in (after, expected):
        each["cells"][1] |= {"id": "", "execution_count": None}
        each["cells"][1]["metadata"].pop("execution", None)
    assert after == expected


def test_what_the_page_hides_is_folded_in_jupyterlab_and_nothing_else(chapter):
    for cell in notebook(chapter)["cells"]:
        tags = {*cell["metadata"].get("tags", [])}
        source = tags & {"hide-input", "hide-cell", "remove-input", "remove-cell"}
        output = tags & {"hide-output", "hide-cell", "remove-output", "remove-cell"}
        folded = cell["metadata"].get("jupyter", {})
        if "parameters" in tags:
            assert folded == {}
        else:
            assert (bool(source), bool(output)) == ("source_hidden" in folded, "outputs_hidden" in folded)
            assert all(value is True for value in folded.values())


@pytest.mark.parametrize(
    ("code", "ran", "shown"),
    [
        ("First.at().run()", {"First"}, set()),
        ("data = own.First.at(seeds=(5,)).run(device='cpu')", {"First"}, set()),
        ("first = First.at(\n    seeds=(0, 1),\n)\ndata = first.run()", {"First"}, set()),
        ("a, b = First.at(), Second.at('book')\nb.run()", set(), set()),
        ("a, b = First.at(), Second.at()\nb.run()", {"Second"}, set()),
        ("First.at('full').run()\nfirst = First.at()\nfirst.measurements(data)", set(), set()),
        ("data = First.load_stored()\nbook = Second.load_stored('book')", set(), {"First"}),
        ("def again():\n    return First.at().run(), First.load_stored()", {"First"}, {"First"}),
    ],
)
def test_what_runs_at_the_size_of_the_session_is_found(code, ran, shown, tmp_path):
    cells = [{"cell_type": "code", "source": line} for line in ("# On Colab\n    %pip install x", code)]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert own_cells.sized(tmp_path / "a.ipynb") == (ran, shown)


def test_the_first_cell_names_the_sizes_that_change_something_here(chapter):
    """As the registry has them: of the experiments of this chapter that follow the size of the session."""
    followers = {name for names in own_cells.sized(chapter) for name in names}
    own = f"attnbook.{chapter.parent.name}.{chapter.stem}."
    kinds = {k.__name__: k for k in experiments().values() if k.__module__.startswith(own)}
    kinds |= {name: experiments()[one] for name, one in own_cells.functions(chapter).items()}
    expected = {name for name, kind in kinds.items() if name in followers and "full" in kind.has()}
    first = " ".join("".join(code_cells(chapter)[0]["source"]).replace("\n# ", " ").split())
    said = " ".join(re.findall(r'"full" ((?:runs|shows) [^;]*)[;.]', first))
    assert {name for name in followers if re.search(rf"\b{name}\b", said)} == expected
    assert ('"full" is the same as "book"' in first) == (bool(followers) and not expected)
    assert ("changes nothing" in first) == (not followers)


def test_what_papermill_injects_below_the_parameters_takes_effect(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "_chosen", {})
    cells = [own_cells.first_cell("", CHAPTERS[0]), 'size = "smoke"\ndevice = "cpu"', own_cells.USE]
    (tmp_path / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    runpy.run_path(str(tmp_path / "cells.py"))
    assert (runtime.size(), str(runtime.device())) == ("smoke", "cpu")


def test_the_notebook_of_a_new_paper_has_these_cells():
    template = ROOT / "tools" / "new_paper" / "chapters" / "paper_name" / "chapter_name.ipynb"
    assert own_cells.with_own_cells(template, "") == text(template)


def test_every_picture_has_an_alt_text_that_says_something(chapter):
    alts = re.findall(r'<img[^>]*?alt="([^"]*)"', shown(chapter))
    assert alts
    assert all(len(alt.split()) >= 5 for alt in alts)


def test_chapter_says_what_it_gives_and_has_claims_sliders_and_exercises(chapter):
    """The form of a chapter; a short one needs one exercise."""
    prose = text(chapter)
    assert "**In short" in prose
    assert "## To take away" in prose
    assert 'class="attnbook-slider"' in shown(chapter)
    cells = notebook(chapter)["cells"]
    words = sum(len("".join(cell["source"]).split()) for cell in cells if cell["cell_type"] == "markdown")
    assert words <= (
        2900 if chapter.with_suffix(".py").exists() else 2600
    )  # of the former, test_prose counts what is seen
    assert prose.count(":::{exercise}") >= (1 if words <= 1500 else 2)
    assert "claim-card" in shown(chapter)


def test_outputs_name_no_folder_of_this_machine(chapter):
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work)/\w", shown(chapter))


def test_notebooks_stay_small(chapter):
    assert chapter.stat().st_size < 600_000


def test_no_two_sliders_of_the_book_share_their_frames():
    keys = [key for path in CHAPTERS for key in re.findall(r'data-frames="(\w+)"', shown(path))]
    assert len(keys) == len(set(keys))


def test_stored_outputs_hold_no_widget_that_died_with_its_kernel(chapter):
    assert "widgets" not in notebook(chapter)["metadata"]
    assert all(widgets.VIEW not in output.get("data", {}) for output in outputs(chapter))


@pytest.mark.parametrize(
    ("service", "button"),
    [
        ("colab", "https://colab.example/github/me/mine/blob/dev/book/a/b.ipynb"),
        ("binder", "https://binder.example/v2/gh/me/mine/dev?urlpath=lab/tree/book/a/b.ipynb"),
        (
            "jupyterhub",
            "https://hub.example/hub/user-redirect/git-pull"
            "?repo=https%3A//github.com/me/mine&urlpath=lab/tree/mine/book/a/b.ipynb&branch=dev",
        ),
    ],
)
def test_launch_addresses_of_a_known_book(service, button):
    """The form that each service documents; none without an address."""
    hosts = {"colab_url": "https://colab.example", "binderhub_url": "https://binder.example"}
    buttons = {"notebook_interface": "jupyterlab", **hosts, "jupyterhub_url": "https://hub.example"}
    repository = {"url": "https://github.com/me/mine", "branch": "dev", "path_to_book": "book/"}
    assert launching.addresses({"repository": repository, "launch_buttons": buttons}, "a/b")[service] == button
    assert launching.file_opened(service, button) == "book/a/b.ipynb"
    repository["url"] = ""
    assert launching.addresses({"repository": repository, "launch_buttons": buttons}, "a/b") == {}


def test_launch_buttons_lead_to_files_of_the_repository(chapter, tracked):
    """For each service that ``_config.yml`` switches on, once the address is known; built pages have the same."""
    page = chapter.relative_to(ROOT).with_suffix("").as_posix()
    settings = launching.settings()
    settings["repository"]["url"] = "https://github.com/someone/attnbook"
    found = launching.addresses(settings, page)
    assert {"colab", "binder"} <= set(found)
    for service, button in found.items():
        assert launching.file_opened(service, button) in tracked


@pytest.mark.slow
def test_a_wrong_stored_output_fails(tmp_path):
    """The canary: the very options of `make test` accept the right output and refuse a wrong one."""
    for name, stored in ("right", "2\n"), ("wrong", "3\n"):
        cell = {
            "cell_type": "code",
            "execution_count": 1,
            "id": "canary",
            "metadata": {},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": stored}],
            "source": "print(1 + 1)",
        }
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NBVAL, "right.ipynb", "wrong.ipynb"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert run.returncode == 1, run.stdout
    assert run.stdout.startswith(".F"), run.stdout  # in this order


def test_measured_numbers_may_differ_but_verdicts_may_not():
    """The sanitising rules hide what varies and nothing else."""
    rules = re.findall(r"regex: (.*)", (ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8"))

    def clean(text):
        for rule in rules:
            text = re.sub(rule, "*", text)
        return text

    card = '<td><b>{}</b> ours <span class="measured">{}</span></td><td>{}</td>'
    assert clean(card.format("GA-1", "0.10", "reproduced")) == clean(card.format("GA-1", "0.11", "reproduced"))
    assert clean(card.format("GA-1", "0.10", "reproduced")) != clean(card.format("GA-1", "0.10", "not reproduced"))
    assert clean(card.format("GA-1", "0.10", "reproduced")) != clean(card.format("GA-2", "0.10", "reproduced"))


ROOMS = {path.parent.name: path for path in reversed(CHAPTERS)}


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_plot_of_the_reader_is_shown_after_the_first_picture_of_a_chapter(room):
    size, use, first, *_ = ("".join(cell["source"]) for cell in code_cells(ROOMS[room]))
    own = ["import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);", "plt.hist([1, 2, 2]);"]
    *_, picture, one, two, interactive = in_a_kernel(
        size, use, first, *own, "plt.isinteractive()", folder=ROOMS[room].parent
    )
    assert "attnbook-figure" in picture["text/html"]
    assert ["image/png" in plot for plot in (one, two)] == [True, True]
    assert interactive["text/plain"] == "True"
