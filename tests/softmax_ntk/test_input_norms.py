"""Steps against input norms: the data, the reason, and rules that can fail."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest

from attnbook import ledger
from attnbook.softmax_ntk.experiments import input_norms, lazy_training
from attnbook.softmax_ntk.figures import requirements as figures
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.tables import requirements as tables

BOOK = input_norms.Settings.book()


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


def with_steps(result, softmax, exp, relu, unit=(10, 11, 12)):
    steps = np.broadcast_to(np.array([softmax, exp, relu], dtype=float), result.steps.shape).copy()
    steps[:, :, 0] = unit
    return dataclasses.replace(result, steps=steps)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"lowest": (0.5, 1.0)}, "lowest"),
        ({"lowest": (1.0, 0.0)}, "lowest"),
        ({"claimed": 0.4}, "claimed"),
        ({"seeds": ()}, "seeds"),
    ],
)
def test_impossible_settings_are_refused_by_name(change, name):
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(BOOK, **change)


def test_an_odd_width_is_refused_by_name_where_neurons_come_in_pairs():
    with pytest.raises(ValueError, match=r"width: .*even.*got 33; take 34"):
        input_norms.run(dataclasses.replace(input_norms.Settings.smoke(), width=33), device="cpu")


def test_only_the_norms_differ_and_they_lie_between_the_lowest_and_one():
    unit, half = BOOK.draw(3, 1.0), BOOK.draw(3, 0.5)
    norms = np.linalg.norm(half.inputs, axis=1)
    np.testing.assert_allclose(np.linalg.norm(unit.inputs, axis=1), 1)
    assert 0.5 <= norms.min() < 0.7 < norms.max() <= 1
    np.testing.assert_allclose(half.inputs / norms[:, None], unit.inputs)
    np.testing.assert_array_equal(half.labels, unit.labels)


def test_lower_norms_keep_their_order():
    half, fifth = (np.linalg.norm(BOOK.draw(3, low).inputs, axis=1) for low in (0.5, 0.2))
    np.testing.assert_array_equal(np.argsort(half), np.argsort(fifth))


def test_the_denominator_improves_the_conditioning_as_soon_as_norms_vary():
    """At infinite width: equal on unit inputs, worse for exp on others, best for ReLU."""

    def condition(name, low):
        return np.linalg.cond(infinite_width_kernel(name, BOOK.draw(0, low).inputs, scale=2.0))

    assert condition("exp", 1.0) == pytest.approx(condition("softmax", 1.0))
    assert condition("exp", 0.5) > 3 * condition("softmax", 0.5) > 3 * condition("relu", 0.5)


def test_runs_that_were_given_up_count_with_the_cap():
    capped = dataclasses.replace(input_norms.Settings.smoke(), max_steps=2)
    result = input_norms.run(capped, device="cpu")
    assert (result.steps[result.reached == 0] == 2).all()
    assert (result.reached == 0).any()


def test_each_rule_can_fail(smoke_results):
    result = smoke_results["softmax_ntk.input_norms"]
    assert set(outcomes(with_steps(result, 40, 240, 20)).values()) == {"reproduced"}
    same = outcomes(with_steps(result, 40, 40, 50, unit=(10, 16, 10)))
    assert set(same.values()) == {"not reproduced"}
    assert len(same) == 4


def test_figure_and_table_draw_from_a_smoke_result(smoke_results):
    result = smoke_results["softmax_ntk.input_norms"]
    figure = figures.steps_against_norm(result)
    assert len(figure.axes) == 2
    plt.close(figure)
    assert "weight scale 2" in tables.condition_numbers(result)._repr_html_()


def test_slopes_at_full_size_are_those_of_each_result(smoke_results):
    lazy = smoke_results["softmax_ntk.lazy_training"]
    settings = dataclasses.replace(lazy.settings, widths=(16, 32), trained_from=16, flat_from=16, short_steps_from=16)
    kept = {name: getattr(lazy, name)[:, :, :2] for name in lazy_training.KEPT}
    text = tables.at_full_size(dataclasses.replace(lazy, settings=settings, **kept), lazy)._repr_html_()
    assert "drift: softmax" in text
    assert "from 32 to 64" in text
