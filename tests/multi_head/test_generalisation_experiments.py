"""The experiments on generalisation: their claims, wrong models that turn them red, settings, pictures and tables."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.figures import BACKGROUND
from attnbook.multi_head import generalisation_bounds as theory
from attnbook.multi_head import leave_one_out
from attnbook.multi_head.experiments import (
    gap_settings,
    generalisation_gap,
    leave_one_out_paths,
    recursions,
    samples,
    stability,
    stability_settings,
)
from attnbook.multi_head.figures import generalisation as figures
from attnbook.multi_head.tables import generalisation as tables

GAP = dataclasses.replace(
    gap_settings.Settings.book(), seeds=(0, 1, 2, 3), chunk=4, sizes=(10, 20, 40), steps=60, test_samples=500
)
STABILITY = dataclasses.replace(
    stability_settings.Settings.book(), seeds=(0, 1, 2), sizes=(10, 20), inside_steps=60, test_samples=800
)
FACT = tables.facts({"one": (np.array([1e-3, 2e9]), np.array([True, False]))})
FEW = dataclasses.replace(STABILITY, seeds=(0, 1), inside_steps=20)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def gap():
    return generalisation_gap.run(GAP, device="cpu")


@pytest.fixture(scope="module")
def stable():
    return stability.run(STABILITY, device="cpu")


def test_honest_runs_pass(gap, stable):
    """But for the margin, which needs larger sizes to fall to a half, and slopes of distances over two sizes only."""
    verdicts = outcomes(gap) | outcomes(stable)
    for needs_more_sizes in ("MH-T2.2-margin", "MH-ST.1", "MH-ST.1-wide"):
        verdicts.pop(needs_more_sizes)
    assert "not reproduced" not in verdicts.values()


def test_every_claim_of_the_chapter_is_measured(gap, stable):
    of_chapter = {c.id for c in ledger.claims() if c.chapter == "multi_head/generalisation"}
    assert set(gap.measurements()) | set(stable.measurements()) == of_chapter


def test_coin_tosses_for_labels_turn_the_rate_red(monkeypatch):
    """Networks that cannot learn: the gap after as many steps as samples falls too slowly."""
    right = samples.draw

    def tossed(mixture, n_samples, seeds, *, purpose="samples", device=None):
        drawn = right(mixture, n_samples, seeds, purpose=purpose, device=device)
        return generalisation_gap._tossed(drawn, seeds, f"mutant {purpose}")

    monkeypatch.setattr(samples, "draw", tossed)
    assert outcomes(generalisation_gap.run(GAP, device="cpu"))["MH-T2.1"] == "not reproduced"


def test_a_bound_without_its_margin_and_logarithm_turns_red(gap, monkeypatch):
    monkeypatch.setattr(theory, "corollary_2", lambda **k: np.full(4, 0.1 / k["n_samples"]))
    verdicts = outcomes(gap)
    assert verdicts["MH-T2.2"] == verdicts["MH-T2.2-vacuous"] == "not reproduced"


def test_networks_that_leave_out_another_sample_turn_the_left_out_gap_red(monkeypatch):
    right = leave_one_out.leave_one_out_weights
    monkeypatch.setattr(
        leave_one_out, "leave_one_out_weights", lambda n, left_out: right(n, [(i + 1) % n for i in left_out])
    )
    assert outcomes(stability.run(FEW, device="cpu"))["MH-LOO"] == "not reproduced"


def test_a_recursion_without_most_of_its_last_term_turns_red(monkeypatch):
    right = recursions.Recursions.forcing.fget
    monkeypatch.setattr(recursions.Recursions, "forcing", property(lambda self: 0.1 * right(self)))
    verdicts = outcomes(stability.run(FEW, device="cpu"))
    assert verdicts["MH-ST.2"] == verdicts["MH-ST.2-forcing"] == "not reproduced"


def test_a_factor_that_is_a_tenth_too_small_turns_the_step_red(monkeypatch):
    """Inside its conditions eq. (20) is nearly attained."""
    right = theory.expansive_factor
    monkeypatch.setattr(theory, "expansive_factor", lambda **options: 0.9 * right(**options))
    small = dataclasses.replace(FEW, sizes=(5, 7))
    assert outcomes(stability.run(small, device="cpu"))["MH-ST.2-expansive"] == "not reproduced"


def test_the_control_shows_that_the_rule_at_fixed_steps_does_not_separate(gap):
    slope = gap.measurements()["MH-T2.1-fixed"].values["slope_coin_tosses"]
    assert -1.7 <= slope <= -0.4
    assert slope < gap.measurements()["MH-T2.1-random"].values["slope_mean_gap"]
    assert (np.diff(np.median(gap.random_margin, axis=0)) < 0).all()


def test_the_literal_bracket_is_what_fails(monkeypatch):
    """If (21) were shown with the right bracket, the claim that it fails as shown would be red."""
    monkeypatch.setattr(theory, "printed_factor", lambda **options: theory.expansive_factor(**options, smoothness=0.0))
    assert outcomes(stability.run(FEW, device="cpu"))["MH-ST.3"] == "not reproduced"


def test_a_run_by_seeds_is_the_run_together():
    few = dataclasses.replace(FEW, sizes=(5, 7), steps=6, inside_steps=4)
    one, both = (stability.run(dataclasses.replace(few, chunk=c), device="cpu") for c in (1, 2))
    for name in ("distance", "test_loss", "left_out_loss", "recursion", "margin", "inside"):
        np.testing.assert_allclose(getattr(one, name), getattr(both, name), rtol=1e-9)


def test_the_recursions_need_every_step():
    problem = stability.Problem(FEW, (0,), torch.device("cpu"))
    path = problem.paths(5, (4,), step_size=0.5, steps=6)[0]
    thin = dataclasses.replace(path, steps=2 * path.steps)
    with pytest.raises(ValueError, match="a record at every step, got steps"):
        recursions.Recursions(thin, FEW.mixture, np.array([4.0]), 0.5)


@pytest.mark.parametrize(
    ("settings", "changed", "message"),
    [
        (gap_settings.Settings, {"sizes": (10, 30)}, "each twice the last"),
        (gap_settings.Settings, {"sizes": ()}, "sizes"),
        (gap_settings.Settings, {"steps": 100}, "steps: expected at least the largest size"),
        (gap_settings.Settings, {"heads": 3}, "even"),
        (gap_settings.Settings, {"test_samples": 0}, "test_samples"),
        (gap_settings.Settings, {"step_size": 0.0}, "step_size"),
        (gap_settings.Settings, {"seeds": (0,)}, "at least two"),
        (stability_settings.Settings, {"sizes": (20, 10)}, "increasing"),
        (stability_settings.Settings, {"heads": (4, 5)}, "even"),
        (stability_settings.Settings, {"steps": 0}, "steps"),
        (stability_settings.Settings, {"inside_step_size": 0.0}, "inside_step_size"),
        (stability_settings.Settings, {"inside_size": 1}, "inside_size"),
        (stability_settings.Settings, {"seeds": (0,)}, "at least two"),
        (leave_one_out_paths.Settings, {"heads": (3,)}, "even"),
        (leave_one_out_paths.Settings, {"n_samples": 1}, "n_samples"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, changed, message):
    with pytest.raises(ValueError, match=message):
        settings(**changed)


def test_pictures_and_tables_can_be_drawn(gap, stable):
    paths = leave_one_out_paths.run(leave_one_out_paths.Settings.smoke(), device="cpu")
    assert paths.measurements() == {}
    drawn = [
        figures.gap_and_bounds(stable),
        figures.stability(stable),
        figures.gaps(gap),
        figures.bounds_and_margin(gap),
        *(figures.explorer_frame(paths, heads, 7) for heads in (4, 100_000_000)),
    ]
    for figure in drawn:
        assert mpl.colors.to_hex(figure.get_facecolor()) == BACKGROUND
        assert all(ax.get_xlabel() and ax.get_ylabel() for ax in figure.axes)
        mpl.pyplot.close(figure)
    for table in (tables.ladder(stable), tables.gaps(gap), tables.vacuous(gap), tables.conditions(stable), FACT):
        assert "measured" in table._repr_html_()
    assert "ten to the power of" in tables.explorer_text(leave_one_out_paths.run(leave_one_out_paths.Settings()), 4, 20)


def test_facts_show_the_range_and_the_failure():
    shown = FACT._repr_html_()
    assert "0.001 to 10⁹" in shown
    assert "<td>no</td>" in shown


def test_head_counts_are_written_in_digits_or_as_powers_of_ten():
    assert [figures.head_count(h) for h in (4, 2000, 100_000_000)] == ["4", "2000", "$10^8$"]
