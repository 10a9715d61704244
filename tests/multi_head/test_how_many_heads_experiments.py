"""Experiments on the number of heads: wrong models turn claims red, and the figures draw what they should."""

from __future__ import annotations

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.multi_head import layer, one_head, starts
from attnbook.multi_head.experiments import (
    groups,
    head_types,
    heads_on_mixture,
    output_scaling,
    planted_teacher,
    starts_compared,
    step_size_map,
)
from attnbook.multi_head.figures import how_many_heads as figures
from attnbook.multi_head.tables import how_many_heads as tables

EXPERIMENTS = (heads_on_mixture, step_size_map, output_scaling, starts_compared, planted_teacher, head_types)
MIXTURE = heads_on_mixture.Settings(
    seeds=(0, 1), heads=(1, 8, 64, 256, 4096), equal_heads=(1, 8), n_test=200, steps=400, records=3
)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.fixture(scope="module")
def smoke():
    return {module: module.run(module.Settings.smoke(), device="cpu") for module in EXPERIMENTS}


def test_every_claim_of_the_chapter_is_measured_or_said_to_be_untestable(smoke):
    chapter = {claim.id for claim in ledger.claims() if claim.chapter == "multi_head/how_many_heads"}
    measured = {name for result in smoke.values() for name in result.measurements()}
    assert chapter - measured == {"MH-APP-G", "MH-H.2-full-size"}
    assert measured <= chapter


def test_a_gradient_that_counts_equal_heads_twice_turns_the_lazy_regime_red(monkeypatch):
    """The multiplicity in the gradient makes training the same for every number of heads, or fail."""
    right = layer.value_and_gradient

    def wrong(parameters, tokens, objective, *, counts=None, exponent=0.5):
        value, gradients = right(parameters, tokens, objective, counts=counts, exponent=exponent)
        if counts is None:
            return value, gradients
        return value, {**gradients, "key_query": gradients["key_query"] * counts.sum(1)[:, None, None, None]}

    honest = outcomes(heads_on_mixture.run(MIXTURE, device="cpu"))
    assert {honest[name] for name in ("MH-H.1", "MH-H.3", "MH-H.3-frozen", "MH-H.4")} == {"reproduced"}
    monkeypatch.setattr(layer, "value_and_gradient", wrong)
    verdicts = outcomes(heads_on_mixture.run(MIXTURE, device="cpu"))
    for claim in ("MH-H.1", "MH-H.2", "MH-H.3", "MH-H.3-frozen", "MH-H.4"):
        assert verdicts[claim] == "not reproduced", claim


def test_one_wrong_power_of_the_number_of_heads_turns_the_identities_red(monkeypatch):
    settings = starts_compared.Settings.smoke()
    right = starts_compared.step_sizes
    monkeypatch.setattr(starts_compared, "step_sizes", lambda eta, h: {**right(eta, h), "key_query": eta / h**0.5})
    verdicts = outcomes(starts_compared.run(settings, device="cpu"))
    assert verdicts["MH-H.5-two-steps"] == "not reproduced"
    assert verdicts["MH-H.5-zero"] == "reproduced"
    monkeypatch.setattr(one_head, "gradient_descent", lambda start, *a, **k: start)
    assert outcomes(starts_compared.run(settings, device="cpu"))["MH-H.5-zero"] == "not reproduced"


def test_an_exponent_that_is_off_turns_the_scalings_red(monkeypatch):
    """The step size grows as for the exponent, the sum over heads does not quite follow."""
    right = layer._divisor
    monkeypatch.setattr(
        layer, "_divisor", lambda parameters, counts, exponent: right(parameters, counts, 0.9 * exponent)
    )
    verdicts = outcomes(output_scaling.run(output_scaling.Settings.smoke(), device="cpu"))
    assert verdicts["MH-H.6"] == verdicts["MH-H.6-effective"] == "not reproduced"


def test_heads_of_one_sign_turn_the_two_types_red(monkeypatch):
    monkeypatch.setattr(starts, "SIGNS", (1.0, 1.0))
    verdicts = outcomes(head_types.run(head_types.Settings.smoke(), device="cpu"))
    assert verdicts["MH-X.4"] == verdicts["MH-X.4-eight"] == "not reproduced"


def test_untrained_networks_turn_the_planted_teacher_and_the_map_red(smoke):
    """So do runs of a few steps on a few samples."""
    assert outcomes(smoke[planted_teacher])["MH-H.7"] == "not reproduced"
    assert outcomes(smoke[step_size_map])["MH-H.9"] == "not reproduced"


def test_seeds_in_parts_give_the_same_numbers(smoke, tmp_path):
    """And a second run uses the parts that are kept."""
    settings = dataclasses.replace(heads_on_mixture.Settings.smoke(), chunk=1)
    for _ in range(2):
        parts = heads_on_mixture.run(settings, device="cpu", workdir=tmp_path)
        np.testing.assert_allclose(parts.train_loss, smoke[heads_on_mixture].train_loss, rtol=1e-10)
        np.testing.assert_allclose(parts.mass, smoke[heads_on_mixture].mass, rtol=1e-10)


def test_mean_mass_weighs_types_by_their_heads(smoke):
    result = smoke[heads_on_mixture]
    np.testing.assert_array_equal(result.mean_mass[:, 0], result.mass[:, 0, :, 0])
    np.testing.assert_allclose(result.mean_mass[:, 1], result.mass[:, 1].mean(-1))


def test_flip_steps_are_the_first_records_on_the_right_side(smoke):
    value = np.array([[[-1.0, -0.1, 0.2], [-1.0, -0.9, -0.8], [0.5, -0.1, 0.3]]])
    both_seeds = np.repeat(value, 2, axis=0)
    result = dataclasses.replace(smoke[head_types], value=np.stack([-both_seeds, both_seeds], axis=-1))
    np.testing.assert_array_equal(result.flip_steps, [[100.0, 100.0, 0.0]] * 2)


def test_the_map_is_indexed_by_heads_then_step_size(smoke):
    """One cell trained alone."""
    result, settings = smoke[step_size_map], step_size_map.Settings.smoke()
    data = groups.draw_data(settings, settings.seeds, device=torch.device("cpu"))
    alone = groups.train_cells(data, [groups.Cell(16, 8.0)], "zero", steps=settings.steps, record_at=(settings.steps,))
    np.testing.assert_allclose(result.cell("train_loss", 16, 8.0), alone["train_loss"][:, 0, 0], rtol=1e-10)
    assert result.cell("train_loss", 16, 8.0) != pytest.approx(result.cell("train_loss", 1, 8.0), rel=1e-6)


def test_networks_that_are_left_out_early_would_not_have_changed(monkeypatch):
    settings = dataclasses.replace(
        step_size_map.Settings.smoke(), heads=(1, 16, 256, 4096), n_samples=5, n_test=50, steps=40
    )
    left_out = step_size_map.run(settings, device="cpu")
    assert (left_out.early_loss <= step_size_map.FINISHED).any()
    monkeypatch.setattr(step_size_map, "FINISHED", -1.0)
    everyone = step_size_map.run(settings, device="cpu")
    for name in ("test_error", "mass", "highest_loss"):
        np.testing.assert_allclose(getattr(left_out, name), getattr(everyone, name), rtol=1e-9, atol=1e-12)


def test_powers_of_the_number_of_heads_are_those_put_in(smoke):
    """The difference of the two types falls like the root, the mean over heads like the number."""
    result = smoke[heads_on_mixture]
    heads = np.array(result.settings.heads)[:, None, None] * np.array([[1.0, 1.0]])
    types = 0.1 + 0.3 / heads + np.array([0.05, -0.05]) / heads**0.5
    made = dataclasses.replace(result, mass=np.broadcast_to(types, result.mass.shape).copy())
    found = made.measurements()["MH-H.3-split"].values
    assert found["power_of_difference"] == pytest.approx(-0.5)
    assert found["power_of_mean"] == pytest.approx(-1.0)


def test_norms_are_compared_where_the_minus_heads_turn(smoke):
    base = smoke[head_types]
    value = np.stack([np.ones((2, 3, 3)), np.broadcast_to([-1.0, 1.0, 1.0], (2, 3, 3))], axis=-1)
    norm = np.stack([np.full((2, 3, 3), 4.0), np.broadcast_to([9.0, 1.0, 8.0], (2, 3, 3))], axis=-1)
    result = dataclasses.replace(base, value=value, norm=norm)
    np.testing.assert_allclose(result.norm_ratio_at_flip(2), [0.25, 0.25])


@pytest.mark.parametrize(
    ("module", "changed", "message"),
    [
        (heads_on_mixture, {"heads": (1, 2)}, "heads"),
        (heads_on_mixture, {"equal_heads": (1, 3)}, "equal_heads"),
        (heads_on_mixture, {"equal_loss": 0.0}, "equal_loss"),
        (step_size_map, {"step_sizes": (0.5, 2.0)}, "step_sizes"),
        (output_scaling, {"heads": (2, 3)}, "heads"),
        (output_scaling, {"heads": (2, 4)}, "heads"),
        (output_scaling, {"exponents": (0.5, 1.0)}, "exponents"),
        (planted_teacher, {"heads": (1, 2)}, "heads"),
        (planted_teacher, {"tuned_heads": (1,)}, "tuned_heads"),
        (planted_teacher, {"n_test": 0}, "n_test"),
        (planted_teacher, {"scale": 0.0}, "scale"),
        (head_types, {"heads": (2, 8)}, "heads"),
        (head_types, {"look_every": 7}, "look_every"),
    ],
)
def test_settings_that_leave_a_claim_without_numbers_are_refused(module, changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(module.Settings.book(), **changed)


@pytest.mark.parametrize("looks", [figures.LOOKS, figures.BY_HEADS, figures.BY_EXPONENT])
def test_looks_differ_in_more_than_colour(looks):
    for attribute in ("marker", "line", "label", "color"):
        values = [getattr(look, attribute) for look in looks.values()]
        assert len(set(values)) == len(values), attribute


def test_figures_and_tables_show_every_number_of_heads(smoke):
    mixture, teacher_ = smoke[heads_on_mixture], smoke[planted_teacher]
    drawn = [
        figures.help_and_hurt(teacher_, mixture),
        figures.error_at_loss(mixture),
        figures.step_map(smoke[step_size_map]),
        figures.root_law(smoke[step_size_map]),
        figures.scalings(smoke[output_scaling]),
        figures.types_of_heads(smoke[head_types]),
        *(figures.explorer_frame(mixture, h) for h in (1, 2)),
    ]
    np.testing.assert_allclose(drawn[0].axes[1].lines[1].get_ydata(), np.median(mixture.test_error[:, :, -1], axis=0))
    assert len(drawn[6].axes[1].lines) == len(drawn[7].axes[1].lines) - 1
    plt.close("all")
    assert len(tables.full_size(mixture).rows) == len(mixture.settings.heads)
    assert len(tables.step_sizes_tried(teacher_).rows) == 4
    assert [row[0] for row in tables.error_rates({"one": [0.1], "two": [0.2]}, "Networks").rows] == ["one", "two"]
    assert [row[0] for row in tables.three_starts(smoke[starts_compared]).rows] == list(starts_compared.STARTS)
    assert "a plus head" in tables.explorer_text(mixture, 1)
    assert "minus heads" in tables.explorer_text(mixture, 4)
