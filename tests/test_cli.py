"""The command line, from end to end."""

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attnbook
from attnbook import __main__, cli, lab, ledger, registry
from attnbook.core.experiment import Experiment
from attnbook.core.results import plain
from attnbook.ledger.rendering import BOARDS
from attnbook.ledger.schema import APART
from attnbook.registry import experiment, experiments

TABLE_1, ERROR_RATE = "global_attention.sample_complexity", "global_attention.error_rate"
PAIR = ("preconditioning.minima", "preconditioning.landscape")
ORDER, SCRIPTED = "GA-T1-order", "multi_head.alternating_labels"
ROOT = Path(__file__).parent.parent
sample_complexity = lab.load_script(ROOT / "chapters" / "global_attention" / "sample_complexity.py")


@pytest.fixture
def call(tmp_results):
    """Call with arguments; stored results are those of an empty folder."""

    def call(*arguments, code=0, **environment):
        done = CliRunner(env={"COLUMNS": "500", **environment}).invoke(cli.app, [str(a) for a in arguments])
        assert done.exit_code == code, done.output
        return done

    return call


@pytest.fixture
def stored(smoke_results, tmp_results):
    """The results of two experiments at smoke scale, stored as such and as those of the book."""
    for name in (ERROR_RATE, TABLE_1):
        for scale in ("smoke", "book"):
            smoke_results.store(name, tmp_results / scale / f"{name}.json")
    return tmp_results


def doctor_result(folder, claim, **values):
    """Change what is stored for a claim."""
    path = folder / f"{ledger.claim(claim).experiment}.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["measurements"][claim]["values"].update(values)
    path.write_text(json.dumps(raw), encoding="utf-8")


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def numbers_in(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw.pop("provenance")
    assert raw.pop("sha256")
    raw.pop("arrays", None)  # a checksum of the provenance as well
    return raw


@pytest.fixture
def only(monkeypatch):
    """Call to leave these experiments in the registry."""

    def only(*names):
        own = {name: experiment(name) for name in names}
        monkeypatch.setattr(registry, "experiments", lambda: own)

    return only


@pytest.fixture
def only_error_rate(only):
    only(ERROR_RATE)


@pytest.mark.slow
def test_the_installed_command_runs(tmp_path):
    command = Path(sys.executable).with_name("attnbook")
    done = subprocess.run([command, "show", "GA-BANANA"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    done = subprocess.run([command, "list", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["id"] for row in json.loads(done.stdout)] == [c.id for c in ledger.claims()]


@pytest.mark.slow
def test_list_shows_every_claim_with_its_outcome_and_counts_the_papers_and_this_books_apart(
    call, all_smoke_results, tmp_results
):
    for name in all_smoke_results:
        all_smoke_results.store(name, tmp_results / "book" / f"{name}.json")
    said = call("list").stdout.splitlines()
    lines = {line.split()[0]: line for line in said if re.match(r"\s?[A-Z]{2}-", line)}
    assert set(lines) == {c.id for c in ledger.claims()}
    rows = json.loads(call("list", "--json").stdout)
    for row in rows:
        assert row["outcome"] in lines[row["id"]]
        assert row["where"] in lines[row["id"]]
    assert "limited over no mask 0.2" in lines[ORDER]
    papers, book, apart, rules = said[-4:]
    counts = Counter("apart" if row["outcome"] in APART else row["source"] for row in rows)
    assert papers.startswith(f"Statements of the papers: {counts['paper']} claims: ")
    assert book.startswith(f"Findings of this book: {counts['book']} claims: ")
    assert apart.startswith(f"{BOARDS['apart']}: {counts['apart']} claims: ")
    assert rules.endswith(f"which the claim names: {sum(bool(c.trial) for c in ledger.claims())}.")


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--paper", "multi_head"], lambda c, outcome: c.paper == "multi_head"),
        (["--outcome", "not testable"], lambda c, outcome: bool(c.untestable)),
        (["--outcome", "pending"], lambda c, outcome: outcome == "pending"),
        (["--source", "book"], lambda c, outcome: c.source == "book"),
        (["--paper", "global_attention", "--outcome", "contradicted"], lambda c, outcome: outcome == "contradicted"),
    ],
)
def test_list_can_be_narrowed(options, chosen, call):
    rows = json.loads(call("list", "--json", *options).stdout)
    expected = [c.id for c in ledger.claims() if chosen(c, ledger.recorded(c).outcome)]
    assert [row["id"] for row in rows] == expected


@pytest.mark.parametrize("command", ["list --paper implicit_bias", f"show {ORDER}", "data", "show GA-€"])
def test_what_a_terminal_cannot_show_is_spelled_out(command, monkeypatch, tmp_results):
    """On a terminal, or in a file, of few letters; nothing is lost and nothing fails."""
    written = [io.TextIOWrapper(io.BytesIO(), encoding="latin-1") for _ in range(2)]
    for name, stream in zip(("stdout", "stderr"), written, strict=True):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["attnbook", *command.split()])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == (2 if command == "show GA-€" else 0)
    print("κ‖", flush=True)
    assert written[0].buffer.getvalue().endswith(rb"\u03ba\u2016" + b"\n")


def test_list_of_experiments(call):
    assert call("list", "--experiments").stdout.split() == list(experiments())
    summaries = json.loads(call("list", "--experiments", "--json").stdout)
    assert summaries == {name: e.summary for name, e in experiments().items()}


@pytest.mark.slow
def test_show_has_statement_verdict_and_numbers_and_in_full_the_rest(call, stored):
    claim = ledger.claim("GA-TAB1")
    shown, rest = (call("show", "GA-TAB1", *more).stdout for more in ((), ("--full",)))
    assert shown.splitlines()[0] == "✗ GA-TAB1: not reproduced"
    assert "baseline 10000 = 0.9" in shown
    assert "reason" not in shown
    for text in (claim.accept, "reason       Medians over seeds.", "baseline 10000 = 0.9"):
        assert text in " ".join(rest.split("\n"))
    data = json.loads(call("show", "GA-TAB1", "--json").stdout)
    assert data["paper_value"] == claim.paper_value
    assert [(v["size"], v["outcome"]) for v in data["recorded"]] == [("book", "not reproduced")]
    assert data["standing"] == data["recorded"][0]
    assert set(data["recorded"][0]["measured"]["values"]) >= set(claim.paper_value)


def test_run_stores_its_result_where_told_and_leaves_nothing_else(call, tmp_path, smoke_results):
    output = tmp_path / "deep" / "mine.json"
    said = call("run", TABLE_1, "--size", "smoke", "--device", "cpu", "--output", output)
    assert f"stored {output}" in said.stdout
    assert files_in(tmp_path) == ["deep", "deep/mine.json", "deep/mine.nc"]
    loaded, ready = experiment(TABLE_1).load(output), experiment(TABLE_1).at("smoke")
    assert loaded.attrs["settings"] == plain(ready)
    assert {line.split(":")[0] for line in said.stdout.splitlines()[:-1]} == set(ready.measurements(loaded))


def test_run_stores_by_default_with_the_results_of_the_scale(call, tmp_results, smoke_results):
    measured = json.loads(call("run", TABLE_1, "--json", "--device", "cpu", ATTNBOOK_SIZE="smoke").stdout)
    assert set(measured) == set(smoke_results.measurements(TABLE_1))
    assert files_in(tmp_results) == ["smoke", f"smoke/{TABLE_1}.json", f"smoke/{TABLE_1}.nc"]


@pytest.mark.slow
def test_verify_holds_for_what_was_just_stored(call, stored, smoke_results, only):
    """Two experiments of one paper; one of another is left out."""
    only(ERROR_RATE, *PAIR)
    for name in PAIR:
        smoke_results.store(name, stored / "smoke" / f"{name}.json")
    said = call("verify", "--paper", "preconditioning", "--size", "smoke", "--device", "cpu").stdout
    measured = sum(len(smoke_results.measurements(name)) for name in PAIR)
    assert f"{measured} of {measured} claims hold as recorded" in said
    assert "DIFFERS" not in said


@pytest.mark.slow
def test_verify_fails_and_names_the_claim_whose_verdict_differs(call, stored, only_error_rate):
    doctor_result(stored / "smoke", ORDER, limited_over_no_mask=2.0)
    options = ("verify", "--paper", "global_attention", "--size", "smoke", "--device", "cpu")
    assert f"DIFFERS {ORDER}: reproduced in trend (recorded: not reproduced)" in call(*options, code=1).stdout
    rows = json.loads(call(*options, "--json", code=1).stdout)
    assert [row["claim"] for row in rows if not row["holds"]] == [ORDER]


def test_verify_fails_where_nothing_was_stored(call, only_error_rate):
    rows = json.loads(call("verify", "--size", "smoke", "--device", "cpu", "--json", code=1).stdout)
    assert {row["recorded"] for row in rows} == {"pending"}


def test_verify_fails_where_there_is_nothing_to_verify(call, only_error_rate):
    assert "0 of 0" in call("verify", "--paper", "multi_head", code=1).stdout


@pytest.fixture
def runs(monkeypatch):
    """The seeds of each run of the only experiment in the registry, a small one."""
    seen = []

    def at(cls, scale=None, **changes):
        return cls(**{**cls.smoke, **changes})

    def run(self, **options):
        seen.append(self.seeds)
        return Experiment.run(self, **options)

    small = experiment(ERROR_RATE)
    monkeypatch.setattr(small, "at", classmethod(at))
    monkeypatch.setattr(small, "run", run)
    monkeypatch.setattr(registry, "experiments", lambda: {small.id: small})
    return seen


@pytest.mark.slow
def test_fresh_seeds_are_run_once_and_every_page_says_how_often_the_verdict_held(call, stored, runs):
    command = ("verify", "global_attention.error_rate", "--fresh", "--sets", 2, "--device", "cpu")
    rows = json.loads(call(*command, "--json", code=1).stdout)  # at this size some verdicts do not hold
    assert {row["fresh"] for row in rows} == {"held in 2 of 2", *(f"unstable: held in {n} of 2" for n in (0, 1))}
    assert [seeds[0] for seeds in runs] == [20000, 30000]
    assert "ok  GA-T1-order: reproduced in trend (held in 2 of 2)" in call(*command, code=1).stdout
    assert len(runs) == 2
    assert "fresh seeds  held in 2 of 2" in call("show", ORDER).stdout
    (line,) = [line for line in call("list").stdout.splitlines() if line.split()[0] == ORDER]
    assert "held in 2 of 2" in line


@pytest.mark.slow
def test_fresh_seeds_fail_and_name_the_claim_that_they_do_not_confirm(call, stored, runs):
    doctor_result(stored / "book", ORDER, limited_over_no_mask=2.0)
    said = call("verify", "--fresh", "--sets", 1, "--device", "cpu", code=1).stdout
    assert f"UNSTABLE {ORDER}: not reproduced (unstable: held in 0 of 1)" in said


def test_doctor_fails_with_what_is_broken_and_says_what_mends_it(call):
    """Here it is the folder of results, which the fixture has emptied."""
    found = json.loads(call("doctor", "--json", code=1, ATTNBOOK_DATA="").stdout)
    assert found["attnbook"] == attnbook.__version__
    (broken,) = (f for f in found["findings"] if f["state"] == "broken")
    assert broken["subject"] == "results"
    assert f"mend: {broken['mend']}" in call("doctor", code=1, ATTNBOOK_DATA="").stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["list", "--paper", "banana"], {}, "paper: got 'banana', expected one of global_attention, "),
        (["list", "--outcome", "banana"], {}, "outcome: got 'banana', expected one of reproduced, "),
        (["show", "GA-BANANA"], {}, "claim_id: no claim 'GA-BANANA'"),
        (["run", "global_attention.sparsty"], {}, "did you mean global_attention.sparsity"),
        (["run", "banana"], {}, "experiment: no experiment 'banana'"),
        (["run", TABLE_1, "--device", "tpu"], {}, "device: 'tpu' is not available here; expected one of "),
        (["run", TABLE_1], {"ATTNBOOK_SIZE": "banana"}, "ATTNBOOK_SIZE: got 'banana'"),
        (["run", TABLE_1], {"ATTNBOOK_SCALE": "book"}, "ATTNBOOK_SCALE: is now ATTNBOOK_SIZE"),
        (["run", TABLE_1, "--size", "banana"], {}, "size: got 'banana', expected one of smoke, book, full"),
        (["run", TABLE_1, "--size", "large"], {}, "size: 'large' is now 'full'"),
        (["run", SCRIPTED, "--size", "full"], {}, f"size: {SCRIPTED} has no size 'full', expected one of smoke, book"),
        (["run", SCRIPTED, "--on", "mars"], {}, "on: got 'mars', expected here, processes:N or the address"),
        (["verify", "--paper", "banana"], {}, "paper: got 'banana'"),
        (["verify", "--fresh", "--size", "full"], {}, "size: got 'full', expected one of book"),
        (["verify", "global_attention.sparsty"], {}, "did you mean global_attention.sparsity"),
        (["verify", "--device", "tpu"], {}, "device: 'tpu'"),
        (["verify"], {"ATTNBOOK_SIZE": "banana"}, "ATTNBOOK_SIZE: got 'banana'"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_leaves_nothing(arguments, environment, message, call, tmp_results):
    done = call(*arguments, code=2, **environment)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("attnbook: ")
    assert message in line
    assert files_in(tmp_results) == []


@pytest.mark.parametrize("arguments", [["list"], ["run", TABLE_1, "--size", "smoke", "--device", "cpu"]])
def test_a_name_that_no_file_can_have_is_one_line(arguments, call):
    done = call(*arguments, code=2, ATTNBOOK_RESULTS="x" * 300)
    (line,) = done.stderr.splitlines()
    assert line.startswith("attnbook: xxx")
    assert line.endswith("File name too long; choose another file or folder")


@pytest.mark.parametrize("arguments", [["run", TABLE_1, "--scale", "book"], ["banana"], ["show"], ["list", "--bana"]])
def test_bad_usage_is_explained_without_a_traceback(arguments, call):
    done = call(*arguments, code=2)
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("arguments", [["list"], ["show", ORDER], ["verify", "--size", "smoke"]])
@pytest.mark.slow
def test_a_damaged_stored_result_is_named(arguments, call, stored, only_error_rate):
    for scale in ("smoke", "book"):
        (stored / scale / "global_attention.error_rate.json").write_text("{", encoding="utf-8")
    done = call(*arguments, code=2)
    assert "attnbook: global_attention.error_rate.json: damaged or unreadable" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def no_training(monkeypatch):
    """Fail when a network is trained."""

    def refuse(*_, **__):
        pytest.fail("trained before looking whether the result can be stored")

    monkeypatch.setattr(sample_complexity, "train_members", refuse)


@pytest.mark.parametrize("place", ["file/mine.json", "file/deep/mine.json", "folder"])
def test_an_impossible_output_is_refused_before_the_run(place, call, tmp_path, no_training):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    done = call("run", TABLE_1, "--size", "smoke", "--output", tmp_path / place, code=2)
    assert done.stderr.startswith("attnbook: output: ")
    assert len(done.stderr.splitlines()) == 1
    assert files_in(tmp_path) == ["file", "folder"]


def test_an_output_without_permission_is_refused_before_the_run(call, tmp_path, no_training, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    done = call("run", TABLE_1, "--size", "smoke", "--output", tmp_path / "mine.json", code=2)
    assert done.stderr.startswith(f"attnbook: output: no permission to write mine.json in {tmp_path}; choose another")
    assert files_in(tmp_path) == []


def test_a_run_that_diverges_says_so_and_stores_nothing(call, tmp_path, monkeypatch):
    def diverge(*_, **__):
        raise FloatingPointError("training diverged at step 7: try a smaller step size")

    monkeypatch.setattr(sample_complexity, "train_members", diverge)
    done = call("run", TABLE_1, "--size", "smoke", "--device", "cpu", "--output", tmp_path / "mine.json", code=2)
    assert done.stderr == "attnbook: training diverged at step 7: try a smaller step size\n"
    assert files_in(tmp_path) == []


def test_a_run_broken_off_continues_to_the_numbers_of_one_that_was_not(call, tmp_path, monkeypatch, smoke_results):
    """Seed 0 is trained once, before the interruption; seed 1 after it."""
    honest, seeds, interruptions = sample_complexity.train_members, [], iter([KeyboardInterrupt])

    def train(members, *arguments, **options):
        (seed,) = {member.seed for member in members}
        if seed == 1 and (interruption := next(interruptions, None)):
            raise interruption
        seeds.append(seed)
        return honest(members, *arguments, **options)

    monkeypatch.setattr(sample_complexity, "train_members", train)
    output, whole = tmp_path / "mine.json", tmp_path / "whole.json"
    command = ("run", TABLE_1, "--size", "smoke", "--device", "cpu", "--output", output)
    assert call(*command, code=130).stderr == "attnbook: stopped after 1 of 2 seeds; run again to continue\n"
    assert not output.exists()
    call(*command)
    assert seeds == [0, 1]
    smoke_results.store(TABLE_1, whole)
    assert numbers_in(output) == numbers_in(whole)
    np.testing.assert_array_equal(experiment(TABLE_1).load(output).test_loss, smoke_results[TABLE_1].test_loss)
    assert files_in(tmp_path) == ["mine.json", "mine.nc", "whole.json"]


@pytest.mark.parametrize("arguments", [["show", "MH-OPEN-heads"], ["list"], ["verify", SCRIPTED, "--size", "smoke"]])
def test_a_damaged_result_of_a_script_is_named(arguments, call, tmp_results):
    for size in ("smoke", "book"):
        (tmp_results / size).mkdir()
        (tmp_results / size / f"{SCRIPTED}.json").write_text('{"format": 1,', encoding="utf-8")
    (line,) = call(*arguments, code=2).stderr.splitlines()
    assert line.startswith(f"attnbook: {SCRIPTED}.json: damaged or unreadable")


def test_a_script_that_cannot_be_imported_is_named(monkeypatch, tmp_path):
    script = tmp_path / "some_paper" / "some_chapter.py"
    script.parent.mkdir()
    script.write_text("def trained(:", encoding="utf-8")
    monkeypatch.setattr(lab, "scripts", lambda: [script])
    with pytest.raises(ValueError, match=r"^some_paper/some_chapter.py: cannot be imported: SyntaxError: "):
        registry.experiments.__wrapped__()


@pytest.fixture
def installed(tmp_path):
    """Call Python as one who has only the package, from a folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "attnbook").symlink_to(Path(attnbook.__file__).parent)
    own = {name: value for name, value in os.environ.items() if name not in ("ATTNBOOK_RESULTS", "COLUMNS")}

    def call(code, folder):
        environment = own | {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout

    return call


CALL = """
import json, sys
from typer.testing import CliRunner
from attnbook.cli import app
for arguments in {asked!r}:
    done = CliRunner().invoke(app, arguments)
    print(json.dumps([done.exit_code, done.stdout, done.stderr, "torch" in sys.modules]))
"""
OUTSIDE = "attnbook: checkout: chapters, claims and results are in the repository of the book, not in the installed "


def test_outside_a_checkout_what_needs_one_says_so_in_a_line_and_leaves_with_1(installed, tmp_path):
    """Data sets and the doctor need none."""
    asked = [["list"], ["list", "--experiments"], ["show", ORDER], ["run", SCRIPTED],
             ["run", "--all"], ["run", "--paper", "multi_head"], ["verify"], ["verify", TABLE_1]]  # fmt: skip
    for line in installed(CALL.format(asked=asked), tmp_path).splitlines():
        code, said, error, _ = json.loads(line)
        assert (code, said, error.count("\n")) == (1, "", 1)
        assert error.startswith(OUTSIDE)
    (line,) = installed(CALL.format(asked=[["data"]]), tmp_path).splitlines()
    assert json.loads(line)[0] == 0


@pytest.mark.slow
def test_from_any_folder_of_a_checkout_experiments_of_both_forms_are_found(installed, tmp_path):
    """The package lies elsewhere, as after an installation; what the scripts of the chapters define is there, too."""
    asked = [["list", "--experiments"], ["run", SCRIPTED, "--size", "smoke", "--output", str(tmp_path / "a.json")]]
    lines = installed(CALL.format(asked=asked), ROOT / "chapters" / "multi_head").splitlines()
    (listed, names, *_), (ran, *_) = map(json.loads, lines)
    assert (listed, ran) == (0, 0)
    assert {TABLE_1, SCRIPTED} <= set(names.split())
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["experiment"] == SCRIPTED
