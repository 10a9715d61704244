"""The smallest working width: the search, the counting bound, and rules that can fail."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.softmax_ntk.experiments import smallest_width
from attnbook.softmax_ntk.figures import requirements as figures
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.tables import requirements as tables
from attnbook.softmax_ntk.two_layer import Networks, draw_weights

CPU = torch.device("cpu")
SMALL = dataclasses.replace(smallest_width.Settings.smoke(), widths=(2, 4, 8, 16), seeds=(0, 1, 2), chunk=3)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": (4, 7)}, "widths: neurons in pairs need even"),
        ({"widths": (8, 4)}, "widths: expected at least two increasing"),
        ({"sizes": (16,)}, "sizes"),
        ({"seeds": ()}, "seeds"),
    ],
)
def test_impossible_settings_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


def test_the_search_stops_at_the_first_failure_from_above(monkeypatch):
    """Made-up networks: seed 0 needs 4 neurons; seed 1 works at 2 but not at 8; seed 2 never works."""
    works = {0: {4, 8, 16}, 1: {2, 4, 16}, 2: set()}
    asked = []

    def train(problem, seeds, **_):
        asked.append((problem.width, tuple(seeds)))
        reached = np.array([problem.width in works[s] for s in seeds])
        return type("Run", (), {"descent": type("D", (), {"reached": reached})})

    monkeypatch.setattr(smallest_width, "train", train)
    found = smallest_width._smallest(SMALL, 3, "softmax", (0, 1, 2), CPU)
    assert found.tolist() == [4, 16, np.inf]
    assert asked == [(16, (0, 1, 2)), (8, (0, 1)), (4, (0,)), (2, (0,))]


def test_below_the_counting_bound_the_kernel_is_singular_and_above_it_is_not():
    """Eleven samples with three inputs: 2n/d_in = 7.3, so that six neurons in pairs cannot have full rank."""
    result = dataclasses.replace(SMALL, sizes=(7, 11), n_inputs=3)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 11, 3)))
    made = smallest_width.SmallestWidth(result, None, np.ones((3, 2, 3)), np.ones((3, 2, 3)))
    assert made.counting_bound().tolist() == pytest.approx([14 / 3, 22 / 3])
    for width, full in ((6, False), (8, True)):
        weights = draw_weights(width, 3, 1, rng=np.random.default_rng(5))
        gram = ntk_gram(Networks.stack("exp", [weights]), x)
        assert (int(torch.linalg.matrix_rank(gram[0])) == 11) == full


def test_rules_fail_where_widths_are_far_from_the_count_or_softmax_needs_more(smoke_results):
    result = smoke_results["softmax_ntk.smallest_width"]
    bound = result.counting_bound()[None, :, None] * np.ones((2, 1, 3))
    for factor, wanted in ((1.0, "reproduced"), (0.3, "not reproduced"), (5.0, "not reproduced")):
        assert outcomes(dataclasses.replace(result, width=factor * bound))["SN-MMIN"] == wanted
    more = bound * np.array([1.5, 1.0, 1.0])
    assert outcomes(dataclasses.replace(result, width=bound))["SN-MMIN-order"] == "reproduced"
    assert outcomes(dataclasses.replace(result, width=more))["SN-MMIN-order"] == "not reproduced"


def test_figure_and_table_draw_from_a_smoke_result(smoke_results):
    result = smoke_results["softmax_ntk.smallest_width"]
    figure = figures.smallest_widths(result)
    assert figure.axes
    plt.close(figure)
    assert "2n/d_in" in tables.smallest_widths(result)._repr_html_()
