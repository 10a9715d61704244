"""Networks without one sample, and the targets of the proofs."""

import math

import numpy as np
import pytest
import torch
import whole_network

from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import layer, leave_one_out, starts
from attnbook.multi_head.leave_one_out import leave_one_out_weights
from attnbook.multi_head.realizability import Targets, nearest_targets
from attnbook.multi_head.tangent_kernel import tangent_margin

SETS, SAMPLES, TOKENS, DIMENSION = 2, 7, 5, 3
COUNTS = torch.tensor([[3.0, 2.0], [1.0, 4.0]], dtype=torch.float64)


@pytest.fixture
def problem():
    random = torch.Generator().manual_seed(0)
    tokens = torch.randn(SETS, SAMPLES, TOKENS, DIMENSION, dtype=torch.float64, generator=random)
    labels = torch.where(torch.randn(SETS, SAMPLES, generator=random) > 0, 1.0, -1.0).double()
    start = {
        "decoder": torch.randn(SETS, 2, TOKENS, DIMENSION, dtype=torch.float64, generator=random),
        "key_query": torch.randn(SETS, 2, DIMENSION, DIMENSION, dtype=torch.float64, generator=random),
    }
    return start, tokens, labels


def train(problem, **changed):
    options = {"counts": COUNTS, "step_size": 0.3, "steps": 11, "record_at": range(12)} | changed
    return leave_one_out.train(*problem, **options)


def one_by_one(problem, index, left_out, steps=11):
    """Train one network of a set with all of its heads written out, by automatic differentiation."""
    start, tokens, labels = problem
    own = {name: tensor[index : index + 1] for name, tensor in start.items()}
    theta = whole_network.expand(own, counts=COUNTS[index : index + 1])
    batch = tokens[index : index + 1], labels[index : index + 1]
    weights = torch.full((SAMPLES,), 1 / SAMPLES, dtype=torch.float64)
    if left_out is not None:
        weights[left_out] = 0
    for _ in range(steps):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in theta.items()}
        losses = torch.log1p(torch.exp(-batch[1] * layer.outputs(leaves, batch[0])))[0]
        gradients = torch.autograd.grad((weights * losses).sum(), list(leaves.values()))
        theta = {n: (leaves[n] - 0.3 * g).detach() for n, g in zip(leaves, gradients, strict=True)}
    losses = torch.log1p(torch.exp(-batch[1] * layer.outputs(theta, batch[0])))[0]
    return theta, losses.numpy()


@pytest.mark.parametrize("index", range(SETS))
def test_every_path_is_that_of_a_network_trained_alone_with_all_of_its_heads(problem, index):
    found = train(problem)
    full, losses = one_by_one(problem, index, None)
    np.testing.assert_allclose(found.sample_loss[-1, index], losses, rtol=1e-11)
    for i in range(SAMPLES):
        reduced, losses = one_by_one(problem, index, i)
        apart = math.sqrt(sum(float((full[name] - reduced[name]).square().sum()) for name in full))
        assert found.distance[-1, index, i] == pytest.approx(apart, rel=1e-10)
        assert found.left_out_loss[-1, index, i] == pytest.approx(losses[i], rel=1e-11)
        assert found.reduced_loss[-1, index, i] == pytest.approx((losses.sum() - losses[i]) / SAMPLES, rel=1e-11)
        norms = (reduced["decoder"].square().sum((2, 3)) + reduced["key_query"].square().sum((2, 3))).sqrt()
        assert found.head_norm[-1, index, 1 + i] == pytest.approx(float(norms.max()), rel=1e-11)


def test_all_networks_start_together(problem):
    found = train(problem)
    assert (found.distance[0] == 0).all()
    np.testing.assert_array_equal(found.left_out_loss[0], found.sample_loss[0])
    np.testing.assert_allclose(found.kept_loss[0], found.reduced_loss[0], rtol=1e-12)


def test_a_reduced_network_never_sees_its_sample(problem):
    start, tokens, labels = problem
    changed = tokens.clone()
    changed[0, 4] *= -3
    before, after = train(problem), train((start, changed, labels))
    torch.testing.assert_close(after.networks["decoder"][0, 5], before.networks["decoder"][0, 5], rtol=1e-12, atol=0)
    assert not torch.allclose(after.networks["decoder"][0, 4], before.networks["decoder"][0, 4])
    assert not torch.allclose(after.networks["decoder"][0, 0], before.networks["decoder"][0, 0])


def test_fewer_networks_and_records_are_some_of_all(problem):
    few, every = train(problem, record_at=(3, 11), left_out=(5, 2)), train(problem)
    for name in ("distance", "sample_loss", "left_out_loss", "kept_loss", "reduced_loss"):
        np.testing.assert_allclose(getattr(few, name), getattr(every, name)[[3, 11]][:, :, [5, 2]], rtol=1e-12)
    np.testing.assert_allclose(few.train_loss, every.sample_loss.mean(2)[[3, 11]], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, x, y: (s, x[:, :1], y[:, :1]), "at least 2, got 1"),
        (lambda s, x, y: (s, x, 2 * y), "labels: expected 1 or -1, got"),
        (lambda s, x, y: ({"decoder": s["decoder"]}, x, y), "expected 'key_query'"),
        (lambda s, x, y: (s, x * torch.nan, y), "tokens: .* not finite"),
    ],
)
def test_samples_that_do_not_fit_are_refused(problem, change, message):
    with pytest.raises(ValueError, match=message):
        train(change(*problem))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "last, count|steps"),
        ({"step_size": -1.0}, "step_size"),
        ({"record_at": (99,)}, "record_at"),
        ({"counts": 0 * COUNTS}, "counts"),
        ({"left_out": (7,)}, "left_out"),
    ],
)
def test_options_outside_their_range_are_refused(problem, changed, message):
    with pytest.raises(ValueError, match=message):
        train(problem, **changed)


def test_weights_leave_one_sample_out():
    expected = [[0.5, 0.5], [0.0, 0.5], [0.5, 0.0]]
    np.testing.assert_array_equal(leave_one_out_weights(2), expected)
    with pytest.raises(ValueError, match="n_samples"):
        leave_one_out_weights(1)


def test_theorem_2_by_hand():
    """4/8 (2 * 10 * 0.3 + 9 * 4 / (4 * 0.5)) = 12."""
    sizes = {"n_samples": 8, "steps": 10, "step_size": 0.5}
    assert theory.theorem_2(**sizes, target_loss=0.3, target_distance=2.0) == pytest.approx(12.0)


@pytest.fixture
def targets(problem):
    _, tokens, labels = problem
    start = starts.first_phase(tokens, labels)
    return start, tokens, labels, nearest_targets(start, tokens, labels, counts=COUNTS, penalties=(0.1, 0.01, 1e-4))


def test_targets_of_the_linearised_network_go_farther_with_smaller_losses(targets):
    """With very many heads the network is its linearisation, and the direction of largest margin is not better."""
    start, tokens, labels, _ = targets
    many = 1e12 * COUNTS
    found = nearest_targets(start, tokens, labels, counts=many, penalties=(0.1, 0.01, 1e-4))
    best = tangent_margin(start, tokens, labels, counts=many)
    distance = torch.as_tensor(found.distance[:, -1])[:, None, None, None]
    moved = {name: start[name] + distance * best.direction[name] for name in start}
    outputs = layer.outputs(moved, tokens, counts=many)
    along = -torch.nn.functional.logsigmoid(labels * outputs).mean(1).numpy()
    assert (np.diff(found.distance) > 0).all()
    assert (np.diff(found.loss) < 0).all()
    assert (found.loss[:, -1] <= along * (1 + 1e-4)).all()


def test_losses_and_distances_are_read_off_between_targets():
    """On log axes: losses 1, 1/10, 1/100 at distances 1, 10, 1000."""
    one = Targets(np.array([[1.0, 10.0, 1000.0]]), np.array([[1.0, 0.1, 0.01]]))
    assert one.loss_at(np.array([100.0])) == pytest.approx(0.1**1.5)
    assert one.distance_for(0.1**1.5) == pytest.approx(100.0)
    assert one.distance_for(0.001) == np.inf
    assert np.isnan(one.loss_at(np.array([1e4])))


def test_penalties_must_decrease(targets):
    with pytest.raises(ValueError, match="penalties"):
        nearest_targets(*targets[:3], counts=COUNTS, penalties=(0.01, 0.1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.target_distance(steps=0, margin=1.0), "steps"),
        (lambda: theory.target_distance(steps=1, margin=0.0), "margin: expected a finite positive number, got 0"),
        (lambda: theory.target_distance(steps=1, margin=1.0, output_bound=0.5), "output_bound: .* of at least 1"),
        (
            lambda: theory.theorem_2(n_samples=1, steps=1, step_size=1.0, target_loss=-1.0, target_distance=0.0),
            "target_loss",
        ),
    ],
)
def test_numbers_outside_their_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
