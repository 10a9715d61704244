"""Every experiment of every paper passes the same checks."""

import dataclasses

import numpy as np
import pytest

from attnbook import ledger
from attnbook.registry import experiments


@pytest.fixture(params=experiments().values(), ids=lambda e: e.id)
def experiment(request):
    return request.param


def test_smoke_run_is_deterministic_reports_progress_and_survives_a_round_trip(experiment, smoke_results, tmp_path):
    """Same settings, same numbers; progress ends at its total; what is saved is what is loaded."""
    first, seen = smoke_results[experiment.id], []
    second = experiment.run(first.settings, device="cpu", progress=lambda done, total: seen.append((done, total)))
    assert first.measurements() == second.measurements()
    assert seen[-1][0] == seen[-1][1]
    first.save(tmp_path / "result.json")
    loaded = experiment.result.load(tmp_path / "result.json")
    assert loaded.settings == first.settings == experiment.settings_for("smoke")
    for field in dataclasses.fields(first):
        if isinstance(getattr(first, field.name), np.ndarray):
            np.testing.assert_allclose(getattr(loaded, field.name), getattr(first, field.name), rtol=1e-5)


def test_every_measured_claim_is_in_the_ledger_and_names_this_experiment(experiment, smoke_results):
    for verdict in ledger.check(smoke_results[experiment.id]).verdicts:
        assert verdict.claim.experiment == experiment.id
        assert not verdict.claim.pending


def test_smoke_book_and_paper_differ(experiment):
    settings = [experiment.settings_for(scale) for scale in ("smoke", "book", "paper")]
    assert len(set(map(repr, settings))) == 3


def test_an_unavailable_device_is_refused(experiment):
    with pytest.raises(ValueError, match="device"):
        experiment.run(experiment.settings_for("smoke"), device="tpu")


def test_every_experiment_states_a_time_budget_of_under_a_minute(experiment):
    """The budget that a chapter's experiments share; the stored book run shows the time each one took."""
    stored = experiment.result.load_stored("book").provenance
    assert stored.cpu_seconds <= experiment.budget_seconds <= 60
