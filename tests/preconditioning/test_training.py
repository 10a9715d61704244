"""Training of many variants as one program equals Algorithm 1 alone."""

import dataclasses

import numpy as np
import pytest
import torch

from attnbook.core.rng import stream
from attnbook.preconditioning.attention import predict
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.optimizer import StructureAwareGD, spectral_init
from attnbook.preconditioning.population import excess_loss, sample_covariance
from attnbook.preconditioning.training import Training, Variant, train_variants

SETUP = Setup(dimension=3, n_outputs=5, condition_number=7.0, largest=0.2, smallest=0.1, noise=0.1, n_samples=101)
TRAINING = Training(steps=7, batch_size=13, record_at=(0, 7))
CPU, EXACT = torch.device("cpu"), torch.float64


@pytest.mark.parametrize(
    "variant",
    [
        Variant(0.05, "two", 1.0, "spectral"),
        Variant(0.02, "left", 1.0),
        Variant(0.02),
        Variant(0.03, "two"),
    ],
)
def test_a_member_is_algorithm_1_as_a_reader_would_run_it(variant):
    """Batched training with closed forms against StructureAwareGD with autograd, on the same minibatches."""
    others = [Variant(0.05, "two", 1.0), Variant(0.01, "left", 0.5)]
    history = train_variants([others[0], variant, others[1]], (11, 17), SETUP, TRAINING, device=CPU, dtype=EXACT)
    seed = 17
    x, y = (torch.as_tensor(array) for array in SETUP.draw(seed))
    rng = stream(seed, "random start")
    start = [torch.as_tensor(rng.standard_normal(shape)) for shape in ((5, 3), (3, 3))]
    layers = [w.clone().requires_grad_() for w in (spectral_init(x, y) if variant.start == "spectral" else start)]
    optimizer = StructureAwareGD(
        *layers,
        covariance=sample_covariance(x),
        step_size=variant.step_size,
        preconditioner=variant.preconditioner,
        penalty=variant.penalty,
    )
    batches = stream(seed, "batches", SETUP.n_samples)
    for _ in range(TRAINING.steps):
        rows = batches.choice(SETUP.n_samples, TRAINING.batch_size, replace=False, shuffle=False)
        optimizer.zero_grad()
        ((predict(*layers, x[rows]) - y[rows]).square().sum() / (2 * len(rows))).backward()
        optimizer.step()
    problem = SETUP.problem(seed)
    true = {"covariance": torch.as_tensor(problem.covariance), "true_map": torch.as_tensor(problem.true_map)}
    alone = excess_loss(*(layer.detach() for layer in layers), **true)
    assert history.records["excess_loss"][-1].reshape(3, 2)[1, 1] == pytest.approx(float(alone), rel=1e-10)


def test_batches_are_drawn_without_replacement_and_shared_by_all_variants():
    full = dataclasses.replace(TRAINING, batch_size=101)
    twice = train_variants([Variant(0.01), Variant(0.01)], (1,), SETUP, full, device=CPU, dtype=EXACT)
    np.testing.assert_allclose(*twice.records["excess_loss"].T, rtol=1e-12)
    with pytest.raises(ValueError, match="batch_size"):
        train_variants([Variant(0.01)], (1,), SETUP, dataclasses.replace(full, batch_size=102), device=CPU)


def test_one_more_seed_or_variant_changes_no_other_number():
    few = train_variants([Variant(0.01)], (1,), SETUP, TRAINING, device=CPU, dtype=EXACT)
    many = train_variants([Variant(0.02), Variant(0.01)], (0, 1, 2), SETUP, TRAINING, device=CPU, dtype=EXACT)
    kept = many.records["excess_loss"].reshape(2, 2, 3)[:, 1, 1]
    np.testing.assert_allclose(kept, few.records["excess_loss"][:, 0], rtol=1e-10)


def test_the_population_gradient_converges_to_the_best_loss_from_the_spectral_start():
    training = Training(40, 13, (0, 40), population=True)
    history = train_variants([Variant(3.0, "two", 1.0, "spectral")], (1,), SETUP, training, device=CPU, dtype=EXACT)
    assert history.records["excess_loss"][-1] < 1e-3 * history.records["excess_loss"][0]


def test_divergence_is_recorded_per_member_and_stops_no_other():
    history = train_variants([Variant(1e6), Variant(0.01)], (0, 1), SETUP, TRAINING, device=CPU)
    assert history.diverged.tolist() == [True, True, False, False]
    assert np.isinf(history.records["excess_loss"][-1, :2]).all()
    assert np.isfinite(history.records["excess_loss"][-1, 2:]).all()


@pytest.mark.parametrize("lost", [[Variant(0.02, penalty=1e9)], [Variant(0.01, penalty=1e9), Variant(0.1, "two", 1e9)]])
def test_variants_that_have_diverged_on_every_seed_change_no_other_number(lost):
    """They are no longer computed from the next record on."""
    often = dataclasses.replace(TRAINING, record_at=tuple(range(8)))
    alone = train_variants([Variant(0.01, "two")], (0, 1), SETUP, often, device=CPU, dtype=EXACT)
    beside = train_variants([*lost, Variant(0.01, "two")], (0, 1), SETUP, often, device=CPU, dtype=EXACT)
    gone = train_variants(lost, (0, 1), SETUP, often, device=CPU, dtype=EXACT)
    n = 2 * len(lost)
    np.testing.assert_allclose(beside.records["excess_loss"][:, n:], alone.records["excess_loss"], rtol=1e-10)
    for history in (beside, gone):
        assert history.diverged[:n].all()
        assert np.isinf(history.records["excess_loss"][-1, :n]).all()


@pytest.mark.parametrize(("optimizer", "step_size"), [("adam", 0.1), ("muon", 0.05), ("shampoo", 1.0)])
def test_every_rule_trains(optimizer, step_size):
    training = dataclasses.replace(TRAINING, steps=60, record_at=(0, 60), optimizer=optimizer, decay=True)
    history = train_variants([Variant(step_size, penalty=1.0)], (0, 1), SETUP, training, device=CPU)
    assert (history.records["excess_loss"][-1] < history.records["excess_loss"][0]).all()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Variant(0.1, "right"), "preconditioner"),
        (lambda: Variant(0.1, start="zero"), "start"),
        (lambda: Variant(0.1, penalty=-1.0), "penalty"),
        (lambda: Training(0, 3, (0,)), "steps"),
        (lambda: Training(3, 0, (0,)), "batch_size"),
        (lambda: Training(3, 3, (0,), optimizer="lion"), "optimizer"),
        (lambda: train_variants([], (0,), SETUP, TRAINING, device=CPU), "variants"),
        (lambda: train_variants([Variant(0.1)], (), SETUP, TRAINING, device=CPU), "seeds"),
        (lambda: train_variants([Variant(-0.1)], (0,), SETUP, TRAINING, device=CPU), "step_size"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, name):
    with pytest.raises(ValueError, match=name):
        make()
