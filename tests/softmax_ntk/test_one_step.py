"""One step of the induction: the four terms, their shares, and what would turn the claims red."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.softmax_ntk.experiments import one_step
from attnbook.softmax_ntk.figures import one_step as figures
from attnbook.softmax_ntk.one_step import loss_terms
from attnbook.softmax_ntk.tables import one_step as tables
from attnbook.softmax_ntk.two_layer import Networks, Weights, loss_and_gradient, predict

SMALL = dataclasses.replace(one_step.Settings.book(), steps=5, seeds=(0, 1), chunk=2)


def double(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.fixture
def step():
    """Two networks of five inputs, three outputs and fourteen neurons, before and after a large step."""
    signs = double(2, 3, 14, seed=1).sign()
    before = Networks("softmax", double(2, 5, 14), signs)
    after = dataclasses.replace(before, first_layer=before.first_layer + 0.3 * double(2, 5, 14, seed=2))
    return before, after, double(2, 7, 5, seed=3), double(2, 3, 7, seed=4)


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


def test_terms_add_up_to_the_change_of_the_loss_for_any_step(step):
    before, after, x, y = step
    loss, end = ((predict(n, x) - y).square().sum((1, 2)) for n in (before, after))
    torch.testing.assert_close(loss_terms(*step).sum(1), end - loss, rtol=1e-12, atol=1e-12)


def test_terms_are_those_of_the_lemma_written_out(step):
    """Normaliser, first order and higher orders from their definitions, one sum after the other."""
    before, after, x, y = step
    signs, error = before.signs, predict(before, x) - y
    old, new = (torch.exp(x @ n.first_layer) for n in (before, after))
    alpha, beta = old.sum(2, keepdim=True), new.sum(2, keepdim=True)
    q, m = (x @ after.first_layer) - (x @ before.first_layer), 14
    parts = (m * new * (1 / beta - 1 / alpha), m * old / alpha * q, m * old / alpha * (torch.exp(q) - 1 - q))
    wanted = [2 * (error * (signs @ part.mT)).sum((1, 2)) for part in parts]
    torch.testing.assert_close(loss_terms(*step)[:, :3], torch.stack(wanted, dim=1), rtol=1e-11, atol=1e-11)


def test_a_step_of_no_length_has_no_terms(step):
    before, _, x, y = step
    assert not loss_terms(before, before, x, y).any()


def test_a_common_shift_moves_the_normaliser_and_the_numerators_and_not_the_loss(step):
    before, _, x, y = step
    shifted = dataclasses.replace(before, first_layer=before.first_layer + 0.1)
    terms = loss_terms(before, shifted, x, y)
    assert (terms[:, 0].abs() > 1e-3).all()
    torch.testing.assert_close(terms.sum(1), torch.zeros(2).double(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b, a, x, y: (dataclasses.replace(b, activation="exp"), a, x, y), "softmax networks, got exp"),
        (lambda b, a, x, y: (b, dataclasses.replace(a, signs=-a.signs), x, y), "after: .*signs differ"),
        (lambda b, a, x, y: (b, a, x, y[:, :2]), "labels: expected"),
        (lambda b, a, x, y: (b, a, x[:, :, :4], y), "inputs: expected"),
    ],
)
def test_wrong_networks_and_shapes_are_refused_by_name(step, change, message):
    with pytest.raises(ValueError, match=message):
        loss_terms(*change(*step))


def test_no_steps_are_refused_by_name():
    with pytest.raises(ValueError, match="steps: expected at least one"):
        dataclasses.replace(SMALL, steps=0)


def test_a_step_size_that_diverges_is_named():
    with pytest.raises(ValueError, match=r"fraction: .*diverges; .*between 0 and 2, got 2\.2"):
        dataclasses.replace(SMALL, fraction=2.2)


def test_an_odd_width_is_refused_by_name_where_neurons_come_in_pairs():
    with pytest.raises(ValueError, match=r"width: .*even.*got 31; take 32"):
        one_step.run(dataclasses.replace(SMALL, width=31), device="cpu")


def test_all_claims_hold_on_a_few_steps():
    assert set(outcomes(one_step.run(SMALL, device="cpu")).values()) == {"reproduced"}


def test_a_wrong_normaliser_or_start_turns_claims_red(monkeypatch):
    honest = one_step.loss_terms
    monkeypatch.setattr(one_step, "loss_terms", lambda *a: honest(*a) * torch.tensor([-1.0, 1, 1, 1]).double())
    assert outcomes(one_step.run(SMALL, device="cpu"))["SN-E1"] == "not reproduced"
    monkeypatch.setattr(one_step, "loss_terms", honest)
    train = one_step.train

    def unpaired(problem, *args, **kwargs):
        return train(dataclasses.replace(problem, start="independent"), *args, **kwargs)

    monkeypatch.setattr(one_step, "train", unpaired)
    red = outcomes(one_step.run(SMALL, device="cpu"))
    assert red["SN-D3"] == red["SN-E1s-normaliser"] == "not reproduced"
    assert red["SN-E1"] == "reproduced"


def test_longer_steps_turn_the_squared_change_red():
    longer = one_step.run(dataclasses.replace(SMALL, fraction=1.5), device="cpu")
    assert outcomes(longer)["SN-E1s-square"] == "not reproduced"


def test_a_gradient_too_long_breaks_its_bound(monkeypatch):
    def wrong(networks, x, y):
        loss, gradient = loss_and_gradient(networks, x, y)
        return loss, gradient * networks.width

    monkeypatch.setattr(one_step, "loss_and_gradient", wrong)
    assert outcomes(one_step.run(SMALL, device="cpu"))["SN-D1"] == "not reproduced"


def test_bound_on_the_gradient_is_met_by_a_single_sample_known_by_hand():
    """One input of one, two neurons at zero: S = 1/2, so mS = 1, and the gradient of each neuron is the residual."""
    network = Networks.stack("softmax", [Weights(np.zeros((1, 2)), np.array([[1.0, -1.0]]))])
    one = torch.ones(1, 1, 1).double()
    found = one_step._one(network, network, one, one, torch.ones(1).double())
    assert float(found["gradient_ratio"]) == pytest.approx(0.5)


def test_figure_and_tables_draw_from_a_smoke_result(smoke_results):
    result = smoke_results["softmax_ntk.one_step"]
    figure = figures.shares(result)
    assert figure.axes
    plt.close(figure)
    assert "normaliser" in tables.account(result)._repr_html_()
    assert "e^3B" in tables.gradient_bound(result)._repr_html_()
    for part in ("marker", "line", "label"):
        assert len({getattr(look, part) for look in figures.TERM_LOOKS.values()}) == len(figures.TERM_LOOKS)


def test_the_largest_neuron_of_the_bound_is_below_its_exponential():
    result = one_step.run(SMALL, device="cpu")
    assert (result.largest_neuron[:, 0] <= np.exp(3 * result.exponent)).all()
    assert result.gradient_ratio.min() > 0
