"""Replication: new seeds, kept sets, verdicts by today's rules; what is stored fits today's experiments."""

import dataclasses
import json

import pytest
from each import each

from attnbook import ledger
from attnbook.core.results import FORMAT, Measurement, ResultError, plain, results_folder, stored_path, write_json
from attnbook.ledger import Replication, replicate, replicated
from attnbook.ledger.replication import fresh_seeds, replicated_size
from attnbook.registry import experiments

TOY = """
[paper]
title = "A Toy"
prefix = "XY"
citation = "toy"
part = 1
[[claim]]
id = "XY-T1"
source = "paper"
where = "Theorem 1"
statement = "Small."
why = "-"
chapter = "toy/errors"
experiment = "toy.errors"
accept = "{accept}"
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (0, 1, 2)
    size: int = 7


@pytest.fixture
def rule(tmp_path_factory, monkeypatch):
    """Call to make a ledger of one claim with this rule."""

    def rule(accept):
        root = tmp_path_factory.mktemp("checkout")
        (root / "chapters" / "toy").mkdir(parents=True)
        (root / "_toc.yml").touch()
        (root / "chapters" / "toy" / "claims.toml").write_text(TOY.format(accept=accept), encoding="utf-8")
        monkeypatch.chdir(root)
        return ledger.claim("XY-T1")

    return rule


@pytest.fixture
def toy(rule, tmp_results):
    """The claim; the book's result measured 0.1 for it."""
    measured = {"XY-T1": dataclasses.asdict(Measurement({"loss": 0.1}))}
    write_json(
        stored_path("toy.errors", "book"), {"format": FORMAT, "experiment": "toy.errors", "measurements": measured}
    )
    return rule("loss < 1")


class Runs:
    """Measures these losses one after the other; None interrupts."""

    def __init__(self, *losses):
        self.losses, self.seeds = list(losses), []

    def __call__(self, settings):
        loss = self.losses.pop(0)
        if loss is None:
            raise KeyboardInterrupt
        self.seeds.append(settings.seeds)
        return {"XY-T1": Measurement({"loss": loss}, {}, len(settings.seeds))}, {"device": "cpu"}


def stored():
    return json.loads(stored_path("toy.errors", "replications").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("losses", "held", "unstable"),
    [((0.1,) * 5, 5, False), ((0.1, 9, 0.2, 0.3, 0.4), 4, False), ((9, 9, 0, 0, 0), 3, True)],
)
def test_sets_that_give_the_verdict_of_the_book_are_counted(losses, held, unstable, toy):
    assert replicated(toy) is None
    replicate("toy.errors", Settings(), Runs(*losses))
    assert replicated(toy) == Replication(held, 5)
    assert replicated(toy).unstable == unstable
    outcomes = [one["outcome"] for one in stored()["XY-T1"]]
    assert outcomes == ["not reproduced" if loss > 1 else "reproduced" for loss in losses]


def test_a_verdict_that_is_not_reproduced_holds_where_it_is_not_reproduced_again(toy, rule):
    replicate("toy.errors", Settings(), Runs(0.1, 0.2, 0.001), sets=3)
    assert replicated(rule("loss < 0.01")) == Replication(2, 3)


def test_sets_share_no_seed_with_each_other_or_with_the_settings(toy):
    runs = Runs(*[0.1] * 5)
    replicate("toy.errors", Settings(), runs)
    flat = [seed for seeds in (*runs.seeds, Settings().seeds) for seed in seeds]
    assert len(set(flat)) == len(flat) == 6 * 3
    assert stored()["seeds"] == [list(seeds) for seeds in runs.seeds]


def test_what_was_interrupted_goes_on_and_what_is_stored_is_not_run_again(toy):
    with pytest.raises(KeyboardInterrupt):
        replicate("toy.errors", Settings(), Runs(0.1, 0.2, None))
    assert replicated(toy) == Replication(2, 2)
    rest = Runs(0.3, 0.4, 0.5)
    replicate("toy.errors", Settings(), rest)
    assert rest.seeds == [fresh_seeds(3, number) for number in (2, 3, 4)]
    assert [one["values"]["loss"] for one in stored()["XY-T1"]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    replicate("toy.errors", Settings(), Runs())


@pytest.mark.parametrize("other", [Settings(size=8), Settings(seeds=(0, 1))])
def test_sets_of_other_settings_are_run_anew(other, toy):
    replicate("toy.errors", Settings(), Runs(0.1, 0.2), sets=2)
    replicate("toy.errors", other, Runs(9, 9), sets=2)
    assert [one["values"]["loss"] for one in stored()["XY-T1"]] == [9, 9]


def test_a_claim_that_only_some_sets_measure_is_an_error_and_finished_sets_stay(toy):
    replicate("toy.errors", Settings(), Runs(0.1), sets=1)
    with pytest.raises(ledger.LedgerError, match=r"^XY-T1: measured in 1 of 2 sets"):
        replicate("toy.errors", Settings(), lambda settings: ({}, {}))
    assert replicated(toy) == Replication(1, 1)


@pytest.mark.parametrize("damage", ["{", '{"format": 1, "experiment": "toy.errors", "seeds": [[1]], "XY-T1": [{}]}'])
def test_a_damaged_file_is_named(damage, toy):
    stored_path("toy.errors", "replications").parent.mkdir()
    stored_path("toy.errors", "replications").write_text(damage, encoding="utf-8")
    with pytest.raises(ResultError, match=r"toy\.errors\.json: damaged"):
        replicated(toy)


def test_a_rule_that_asks_for_more_than_was_measured_says_what_to_run(toy, rule):
    replicate("toy.errors", Settings(), Runs(0.1), sets=1)
    kept = stored()
    kept["XY-T1"][0]["values"] = {"error": 0.1}
    write_json(stored_path("toy.errors", "replications"), kept)
    with pytest.raises(ResultError, match=r"older than the rule of XY-T1: .*`attnbook verify --fresh toy.errors`"):
        replicated(toy)


def test_claims_of_a_larger_size_only_are_tried_at_that_size(toy):
    assert replicated_size("toy.errors") == "book"
    stored_path("toy.errors", "full").parent.mkdir(exist_ok=True)
    stored_path("toy.errors", "book").rename(stored_path("toy.errors", "full"))
    assert replicated_size("toy.errors") == "full"
    replicate("toy.errors", Settings(), Runs(0.2, 2.0), sets=2)
    assert replicated(toy) == Replication(1, 2)


def test_seeds_of_every_size_are_far_from_fresh_ones():
    sizes = [(name, scale) for name, experiment in experiments().items() for scale in experiment.has()]
    assert [(name, scale) for name, scale in sizes if max(experiments()[name].at(scale).seeds) >= 10_000] == []


def test_stored_replications_are_of_the_settings_and_claims_of_today():
    each(sorted((results_folder() / "replications").glob("*.json")), of_today, lambda file: file.stem)


def of_today(file):
    experiment = experiments()[file.stem]
    raw = json.loads(file.read_text(encoding="utf-8"))
    settings = plain(experiment.at(replicated_size(file.stem)))
    count = len(settings.pop("seeds"))
    assert raw["settings"] == settings
    assert raw["seeds"] == [list(fresh_seeds(count, number)) for number in range(len(raw["seeds"]))]
    for claim in set(raw) - {"format", "experiment", "settings", "seeds", "provenance", "sha256"}:
        assert ledger.claim(claim).experiment == file.stem
        assert replicated(ledger.claim(claim)) is not None
