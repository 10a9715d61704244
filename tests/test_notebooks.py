"""The stored notebooks, and the proof that a wrong one would be noticed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted((ROOT / "chapters").rglob("*.ipynb"))
COLLECTIONS = {"reading_with_care"}
"""Pages of many small demonstrations: no slider, fewer exercises."""
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg")]


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs(path):
    return [output for cell in code_cells(path) for output in cell["outputs"]]


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


def test_first_cell_installs_on_colab_and_is_silent_elsewhere(chapter):
    first = code_cells(chapter)[0]
    assert {"remove-cell", "nbval-ignore-output"} <= set(first["metadata"]["tags"])
    assert "google.colab" in "".join(first["source"])
    assert first["outputs"] == []
    assert "".join(first["source"]) == "".join(code_cells(CHAPTERS[0])[0]["source"])


def test_every_picture_has_an_alt_text_that_says_something(chapter):
    alts = re.findall(r'<img[^>]*?alt="([^"]*)"', shown(chapter))
    assert alts
    assert all(len(alt.split()) >= 5 for alt in alts)


def test_chapter_has_claims_a_slider_and_exercises(chapter):
    """The form of a chapter."""
    text, prose = shown(chapter), chapter.read_text(encoding="utf-8")
    assert "{exercise-start}" in prose
    if chapter.stem not in COLLECTIONS:
        assert "claim-card" in text
        assert "attnbook-slider" in text
        assert prose.count("{exercise-start}") >= 3
    assert prose.count("{exercise-start}") == prose.count("{solution-start}")


def test_outputs_name_no_folder_of_this_machine(chapter):
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work)/\w", shown(chapter))


def test_notebooks_stay_small(chapter):
    assert chapter.stat().st_size < 2_000_000


def test_launch_buttons_lead_to_files_that_exist(chapter):
    """The address that the Colab button opens is repository, branch and path of the notebook."""
    repository = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    path = Path(repository["path_to_book"], chapter.relative_to(ROOT))
    assert (ROOT / path).is_file()
    assert repository["url"].startswith("https://github.com/")


@pytest.mark.slow
@pytest.mark.parametrize(("stored", "passes"), [("2\n", True), ("3\n", False)])
def test_a_wrong_stored_output_fails(stored, passes, tmp_path):
    """The canary: the very options of `make test` accept the right output and refuse a wrong one."""
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
    (tmp_path / "canary.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NBVAL, "canary.ipynb"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert (run.returncode == 0) == passes, run.stdout


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
