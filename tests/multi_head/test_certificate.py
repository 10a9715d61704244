"""Theorems 1 and 2: formulas against values computed by hand, certificates, tangent kernels against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import whole_network

from attnbook.multi_head import certificate, certify, head_groups, layer, network, starts
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import curvature_bounds as segment_theory
from attnbook.multi_head.curvature_bounds import LARGEST_CUMULANT, loss_constants
from attnbook.multi_head.data import Mixture, draw
from attnbook.multi_head.derivatives import loss_hessian
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import tangent_features, tangent_margin

SIZES = {"n_tokens": 4, "dimension": 9, "token_norm": 1.0, "head_norm": 1.0, "distance": 2.0}


# Formulas of the paper, by hand


@pytest.mark.parametrize(
    ("changes", "by_hand"),
    [
        # (2 * 2 * 9 / 10 + 1) (3 * 3 [3 * 2 (6 + 1) + 2 * 2])^2 = 4.6 * 414^2
        ({}, 4.6 * 414**2),
        # the dimension enters the first bracket as d, not as its root, and alpha as its root
        ({"dimension": 1}, 1.4 * 138**2),
        # R = 2: (2 * 2 * 9 * 8 / 10 + 4) (3 * 3 * 4 [3 * 2 * 8 * 7 + 2 * 2 * 2])^2
        ({"token_norm": 2.0}, 32.8 * (36 * 344) ** 2),
        ({"n_tokens": 1}, (1.8 + 0.25) * (9 * 23) ** 2),
        ({"distance": 0.0}, 4.6 * 90**2),
        ({"n_heads": 1e4}, 1.36 * 414**2),
    ],
)
def test_rho_of_section_6_1(changes, by_hand):
    assert theory.smoothness(**{**SIZES, "n_heads": 100, **changes}) == pytest.approx(by_hand, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "by_hand"),
    [
        # beta_3 = 2 * 6 (3 * 3 * 7 + 1) = 768; 2 * 768 * 6^2 = 55296
        ({}, 55_296.0**2),
        # R = 2: beta_3 = 12 * 8 (9 * 4 * 7 + 1)
        ({"token_norm": 2.0}, (72 * 96 * 253.0) ** 2),
        # d = 1: beta_3 = 2 * 2 (3 * 7 + 1)
        ({"dimension": 1}, (72 * 88.0) ** 2),
    ],
)
def test_heads_of_the_sketch(changes, by_hand):
    """2 beta_3 ||theta - theta_k||^2 with a distance of 3 D and heads of norm B + 3 D."""
    assert theory.sketch_heads(**{**SIZES, **changes}) == pytest.approx(by_hand, rel=1e-14)


def test_rho_is_above_the_smoothness_wherever_gradient_descent_may_go():
    """Heads are at most B + 3 D large there, and after one more step of size at most one by the gradient larger."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        t, d = rng.integers(1, 50, 2).tolist()
        heads, token_norm, distance, head_norm = (10 ** rng.uniform((0, 0, -2, -2), (12, 1, 2, 1))).tolist()
        sizes = {"n_tokens": t, "dimension": d, "n_heads": heads, "token_norm": token_norm}
        rho = theory.smoothness(**sizes, distance=distance, head_norm=head_norm)
        largest = head_norm + 3 * distance
        gradient = loss_constants(**sizes, largest_head_norm=largest).gradient
        assert loss_constants(**sizes, largest_head_norm=largest + gradient).smoothness <= rho


def test_heads_of_the_sketch_meet_condition_18_at_three_distances():
    sizes = {name: SIZES[name] for name in ("n_tokens", "dimension", "token_norm")}
    allowed = segment_theory.allowed_distance(**sizes, n_heads=round(theory.sketch_heads(**SIZES)), head_norm=7.0)
    assert allowed == pytest.approx(6, rel=1e-9)


def test_heads_of_condition_3_with_constant_one():
    """(d T^1/2 R^5 B D^3)^2 = (9 * 2 * 8)^2, and how each letter enters."""
    assert theory.order_heads(**SIZES) == 144**2
    for name, power in {"n_tokens": 1, "dimension": 2, "token_norm": 10, "head_norm": 2, "distance": 6}.items():
        doubled = theory.order_heads(**{**SIZES, name: 2 * SIZES[name]})
        assert doubled / theory.order_heads(**SIZES) == pytest.approx(2**power)


def test_rho_outgrows_the_order_of_theorem_1_in_the_number_of_tokens():
    """T^2 against T^(3/2): the note of MH-T1.4."""
    few, many = (theory.smoothness(**{**SIZES, "n_tokens": t, "n_heads": 1e30}) / t**1.5 for t in (100, 10_000))
    assert many / few == pytest.approx(10, rel=1e-6)


def test_bound_and_distance_of_corollary_2():
    """(2 B + log K) / gamma, and 2 / K + 5 (2 B + log K)^2 / (4 gamma^2 eta K)."""
    assert theory.target_distance(steps=math.e, margin=0.5, output_bound=1.5) == pytest.approx(8)
    by_hand, distance = 2 / 100 + 5 * (2 + math.log(100)) ** 2 / (4 * 0.8**2 * 0.5 * 100), (2 + math.log(100)) / 0.8
    found = theory.regret_bound(target_loss=1 / 100, distance=distance, step_size=0.5, steps=100)
    assert found == pytest.approx(by_hand, rel=1e-14)


def test_regret_of_a_convex_quadratic_obeys_the_bound():
    """Gradient descent on x^2/2 with any target, step size at most one: known by hand."""
    for eta, target in ((1.0, 0.0), (0.3, 0.7), (0.05, 2.0)):
        x, values = 3.0, []
        for _ in range(40):
            x -= eta * x
            values.append(x * x / 2)
        bound = theory.regret_bound(target_loss=target**2 / 2, distance=3.0 - target, step_size=eta, steps=40)
        assert np.mean(values) <= bound


# Certificates


def test_a_tracked_head_never_needs_more_room_than_it_has():
    """The movement (17/4) (3/26) beta_1/beta_3' allowed by the proof, over all sizes."""
    share = 17 / 4 * 3 / 26
    assert share * 2 / LARGEST_CUMULANT < certificate.ROOM < 1.03 * share * 2 / LARGEST_CUMULANT
    for token_norm in (1.0, 1.7, 5.0):
        for head_norm in (0.0, 0.3, 2.0, 50.0):
            sizes = {"n_tokens": 3, "dimension": 5, "n_heads": 1, "token_norm": token_norm}
            constants = loss_constants(**sizes, largest_head_norm=head_norm)
            assert share * constants.gradient / constants.dimension_free_curvature < certificate.ROOM


def test_tracked_constants_by_hand():
    """T = 4, R = 1, B = 1.5: beta_1 = 2 * 4, beta_3' = 2 (1.5 c + 1), and heads and distance are inverse."""
    curvature = 2 * (1.5 * 4 / (3 * math.sqrt(3)) + 1)
    sizes = {"n_tokens": 4, "token_norm": 1.0, "start_head_norm": 0.2}
    assert certificate.heads_for(3.0, **sizes) == pytest.approx((26 / 3 * curvature * 9) ** 2)
    allowed = certificate.tracked_heads(n_heads=(26 / 3 * curvature * 9) ** 2, **sizes)
    assert allowed.distance == pytest.approx(3)
    assert allowed.step_size == pytest.approx(1 / (1 / (26 / 3 * 9) + 16))
    # Section 7 with heads tracked: the fourth power of the distance, so of 1 / gamma.
    assert certificate.heads_for(6.0, **sizes) == pytest.approx(16 * certificate.heads_for(3.0, **sizes))


@pytest.fixture(scope="module")
def small():
    mixture = Mixture(n_tokens=5, dimension=7, n_patterns=3, label_noise=0.05, other_noise=0.05, free_noise=0.2)
    drawn = draw(mixture, 11, (0, 1))
    start = starts.first_phase(*draw(mixture, 60, (0, 1), purpose="first phase")[:2])
    return drawn, start, torch.tensor([[3.0, 2.0], [2.0, 3.0]], dtype=torch.float64)


def arguments(small):
    drawn, start, _ = small
    return drawn.tokens[0], drawn.labels[0], {name: tensor[0] for name, tensor in start.items()}


def test_a_certificate_holds_for_training_and_its_targets_meet_every_hypothesis(small):
    tokens, labels, start = arguments(small)
    found = certify(tokens, labels, start, n_heads=1e9)
    assert found.failing == ""
    token_norm = max(1.0, float(tokens.norm(dim=2).max()))
    head_norm = float(start["decoder"].square().sum((1, 2)).max().sqrt())
    sizes = {"n_tokens": 5, "token_norm": token_norm, "start_head_norm": head_norm}
    assert 0.999 < found.step_size / certificate.tracked_heads(n_heads=1e9, **sizes).step_size <= 1
    assert all(certificate.heads_for(far, **sizes) <= 1e9 * (1 + 1e-9) for far in found.distances)
    counts = torch.full((1, 2), 5e8, dtype=torch.float64)
    stacked = {name: tensor[None] for name, tensor in start.items()}
    losses = logistic(labels[None])
    history = head_groups.gradient_descent(
        stacked, tokens[None], losses, counts=counts, step_size=found.step_size, steps=50, record_at=range(51),
        record=lambda p: {"loss": losses(layer.outputs(p, tokens[None], counts=counts))[0]},
    )  # fmt: skip
    average = history.records["loss"][1:, 0].mean()
    assert 0.2 * found.bound_after(50) < average < found.bound_after(50)
    assert found.bound == pytest.approx(3.25 * found.target_losses.min())
    # One of the targets, in the whole network: its distance and its loss.
    direction = tangent_margin(stacked, tokens[None], labels[None], counts=counts).direction
    target = {name: stacked[name] + found.distances[150] * direction[name] for name in stacked}
    moved = {name: target[name] - stacked[name] for name in stacked}
    assert head_groups.norm(moved, counts=counts).item() == pytest.approx(found.distances[150])
    assert losses(layer.outputs(target, tokens[None], counts=counts))[0].item() == pytest.approx(
        found.target_losses[150]
    )


def test_the_best_number_of_steps_has_the_smallest_bound_and_none_has_one_without_a_target(small):
    found = certify(*arguments(small), n_heads=1e9)
    assert found.bound == found.bound_after(found.steps)
    assert all(found.bound <= found.bound_after(k) for k in np.geomspace(1, found.steps, 30).astype(int))
    assert found.bound_after(1e40) == math.inf


@pytest.mark.parametrize(("length", "noise", "seed"), [(1.0, 0.5, 0), (2.0, 0.5, 1), (0.5, 0.2, 2)])
def test_the_fewest_heads_suffice_and_slightly_fewer_do_not(length, noise, seed):
    """Two tokens in the plane, from zero; here the number of steps is small enough for its rounding to matter."""
    draw_from = np.random.default_rng(seed)
    y = draw_from.choice([-1.0, 1.0], 20)
    x = np.zeros((20, 2, 2))
    x[:, 0, 0], x[:, 1, 1] = length * y, draw_from.uniform(-noise, noise, 20)
    zero = {"decoder": np.zeros((1, 2, 2)), "key_query": np.zeros((1, 2, 2))}
    fewest = certify(x, y, zero, 1e9).fewest_heads
    for targets in (2, 200):
        enough, short = (certify(x, y, zero, share * fewest, targets=targets) for share in (1, 0.998))
        assert enough.failing == ""
        assert enough.bound < math.log(2) <= short.bound
        # Whoever has too few is told a number that is enough.
        assert short.n_heads < short.fewest_heads <= 1.001 * fewest
        assert certify(x, y, zero, short.fewest_heads, targets=targets).failing == ""


def test_fewest_heads_are_where_a_certificate_starts_to_say_something(small):
    fewest = certify(*arguments(small), n_heads=1e9).fewest_heads
    assert certify(*arguments(small), n_heads=fewest).bound < math.log(2)
    too_few = certify(*arguments(small), n_heads=fewest / 10)
    assert too_few.bound > math.log(2)
    assert too_few.failing.startswith("heads: ")
    assert "10 times as many" in too_few.failing


def test_a_whole_network_and_its_groups_have_one_certificate(small):
    tokens, labels, start = arguments(small)
    whole = {name: tensor.repeat_interleave(torch.tensor([3, 2]), dim=0) for name, tensor in start.items()}
    one, other = certify(tokens, labels, start, (6e8, 4e8)), certify(tokens, labels, whole, 1e9)
    np.testing.assert_allclose(one.target_losses, other.target_losses, rtol=1e-9)
    assert one.fewest_heads == pytest.approx(other.fewest_heads)


@pytest.mark.parametrize("x", [np.ones((2, 2, 2)), np.array([[[1.0, 0.0], [-1.0, 0.0]]] * 2)])
def test_samples_that_no_direction_separates_fail_separability(x):
    """The same sample with both labels; gradients that are all zero."""
    zero = {"decoder": np.zeros((1, 2, 2)), "key_query": np.zeros((1, 2, 2))}
    found = certify(x, [1, -1], zero, 1e9)
    assert found.failing.startswith("separability (P3)")
    assert (found.bound, found.steps, found.fewest_heads) == (math.inf, 0, math.inf)
    assert found.bound_after(10) == math.inf


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", lambda x: x.clone().index_fill_(0, torch.tensor(2), math.nan), "tokens: expected finite numbers"),
        ("tokens", lambda x: x[0], r"tokens: expected \(members, samples, tokens, dimension\)"),
        ("tokens", lambda x: "words", "tokens: expected numbers, got str"),
        ("labels", lambda y: y[:5], r"labels: expected \(1, 11\)"),
        ("labels", lambda y: (y + 1) / 2, "labels: expected 1 or -1, got 0"),
        ("start", lambda s: {"decoder": s["decoder"]}, "start: expected 'key_query'"),
        ("start", lambda s: {**s, "decoder": s["decoder"][:, :3]}, r"start\['decoder'\]: expected \(1, 2, 5, 7\)"),
        ("start", lambda s: {**s, "key_query": s["key_query"] + math.inf}, r"start\['key_query'\]: expected finite"),
        ("n_heads", lambda n: 0.5, "n_heads: expected a finite number of at least 1"),
        ("n_heads", lambda n: math.inf, "n_heads: expected finite numbers"),
        ("n_heads", lambda n: (1e6, 1e6, 1e6), r"n_heads: expected \(1, 2\), got \(1, 3\)"),
        ("n_heads", lambda n: (1e6, 0.0), "n_heads: expected numbers above 0"),
        ("targets", lambda n: 1, "targets: expected a finite number of at least 2, got 1"),
    ],
)
def test_certify_names_the_argument_that_is_wrong(small, name, value, message):
    tokens, labels, start = arguments(small)
    good = {"tokens": tokens, "labels": labels, "start": start, "n_heads": 1e6, "targets": 20}
    with pytest.raises(ValueError, match=message):
        certify(**{**good, name: value(good[name])})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.regret_bound(target_loss=0.1, distance=1, step_size=0, steps=3), "step_size"),
        (lambda: theory.regret_bound(target_loss=0.1, distance=1.0, step_size=-1.0, steps=10), "step_size"),
        (lambda: theory.order_heads(**{**SIZES, "token_norm": 0.5}), "token_norm"),
        (lambda: theory.sketch_heads(**{**SIZES, "distance": -1.0}), "distance"),
        (lambda: theory.smoothness(**SIZES, n_heads=0), "n_heads"),
        (lambda: theory.smoothness(**{**SIZES, "dimension": 0}, n_heads=1), "dimension"),
        (lambda: certificate.tracked_heads(n_tokens=3, n_heads=0.5, token_norm=1.0, start_head_norm=0.0), "n_heads"),
        (lambda: certificate.heads_for(-1.0, n_tokens=3, token_norm=1.0, start_head_norm=0.0), "distance"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_certificate_has_no_bound_after_less_than_a_step(small):
    with pytest.raises(ValueError, match="steps"):
        certify(*arguments(small), 1e6, targets=2).bound_after(0)


# The tangent kernel


def test_tangent_direction_has_the_margin_it_claims_in_the_whole_network(small):
    drawn, start, counts = small
    found = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts)
    member = {name: tensor[:1] for name, tensor in start.items()}
    whole = whole_network.expand(member, counts=counts[:1])
    features = tangent_features(whole, drawn.tokens[:1])[0]
    direction = whole_network.expand({name: t[:1] for name, t in found.direction.items()}, counts=counts[:1])
    flat = torch.cat([direction[name].flatten(2) for name in ("decoder", "key_query")], dim=2).flatten()
    assert flat.norm().item() == pytest.approx(1)
    margin = (drawn.labels[0] * (features @ flat)).min().item()
    assert math.sqrt(2) * margin == pytest.approx(found.margin[0], rel=1e-6)


def test_tangent_margin_does_not_depend_on_the_number_of_heads_or_their_signs(small):
    drawn, start, counts = small
    few = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts).margin
    many = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts.flip(1) * 1e6).margin
    np.testing.assert_allclose(few, many, rtol=1e-8)


# Equations (15) and (17), MH-E15, whose left and right sides no experiment compares


def saddle(size):
    """A head of size (1, -1) and 1 that solves two samples, (1, -1) and (-1, 1), as it grows from a saddle at zero."""
    batch = torch.tensor([[[[1.0], [-1.0]], [[-1.0], [1.0]]]]).double(), torch.tensor([[1.0, -1.0]]).double()
    decoder = size * torch.tensor([[[[1.0], [-1.0]]]]).double()
    return {"decoder": decoder, "key_query": size * torch.ones(1, 1, 1, 1).double()}, batch


def between(one, other):
    """Largest loss and smallest eigenvalue of the Hessian on a segment, and the larger of its ends' beta_3."""
    points = [{n: (1 - a) * one[n] + a * other[n] for n in one} for a in torch.linspace(0, 1, 21).double()]
    batch = saddle(1.0)[1]
    losses = [network.losses(point, batch).item() for point in points]
    hessians = (loss_hessian({n: t[0] for n, t in point.items()}, batch[0][0], batch[1][0]) for point in points)
    smallest = min(np.linalg.eigvalsh(hessian.dense())[0] for hessian in hessians)
    sizes = {"n_tokens": 2, "dimension": 1, "n_heads": 1, "token_norm": 1.0}
    norms = (network.largest_head_norm(end).item() for end in (one, other))
    return max(losses), smallest, max(loss_constants(**sizes, largest_head_norm=norm).curvature for norm in norms)


def test_smallest_eigenvalue_on_a_segment_is_at_least_that_of_equation_15():
    """At zero it is -1/sqrt(2) by hand: the loss is log 2 - (u_1 - u_2) w / 2 there, up to third order."""
    assert between(saddle(0.0)[0], saddle(1e-6)[0])[1] == pytest.approx(-1 / math.sqrt(2), abs=1e-5)
    for size in (0.1, 0.5, 2.0):
        largest, smallest, beta_3 = between(saddle(0.0)[0], saddle(size)[0])
        assert -beta_3 * largest <= smallest < -largest / 2


def test_regret_needs_the_last_sum_of_equation_17():
    """Near a saddle descent stays behind what convexity gives; with the sum, or with true curvature, it does not."""
    (start, batch), target, eta, steps = saddle(0.01), saddle(1.0)[0], 0.05, 60
    history = [start]
    for _ in range(steps):
        gradient = network.loss_and_gradient(history[-1], batch)[1]
        history.append({n: history[-1][n] - eta * gradient[n] for n in gradient})
    average = np.mean([network.losses(one, batch).item() for one in history[1:]])

    def away(one):
        return sum(float((one[n] - target[n]).square().sum()) for n in one)

    convex = network.losses(target, batch).item() + away(start) / (2 * eta * steps)
    found = [(*between(one, target), away(one)) for one in history[:-1]]
    true = convex + sum(-smallest * far for _, smallest, _, far in found) / (2 * steps)
    stated = convex + sum(beta_3 * largest * far for largest, _, beta_3, far in found) / (2 * steps)
    assert convex < average <= true < stated


def along_the_ridge(far):
    """Loss on the way from one side of the saddle to the other, where both ends solve the task: eq. (18)'s segment."""
    ends = saddle(-far)[0], saddle(far)[0]
    points = [{n: (1 - a) * ends[0][n] + a * ends[1][n] for n in ends[0]} for a in torch.linspace(0, 1, 21).double()]
    return ends, [network.losses(point, saddle(1.0)[1]).item() for point in points]


def test_the_loss_between_near_networks_rises_by_at_most_a_third_and_between_far_ones_by_more():
    """Proposition 4, MH-P4.1: at the distance that (18) allows, and at 300 times it."""
    allowed = 0.0
    for _ in range(20):  # it depends on the norms of the ends
        sizes = {"n_tokens": 2, "dimension": 1, "n_heads": 1, "token_norm": 1.0}
        norm = network.largest_head_norm(saddle(allowed / 2 / math.sqrt(3))[0]).item()
        allowed = segment_theory.allowed_distance(**sizes, head_norm=norm)
    near, far = (along_the_ridge(times * allowed / 2 / math.sqrt(3))[1] for times in (1, 300))
    assert 1 < max(near) / max(near[0], near[-1]) <= 4 / 3
    assert max(far) / max(far[0], far[-1]) > 4 / 3


def test_equation_14_is_a_lower_bound():
    """MH-B13.4: with the sign that the text shows it would fail, in both directions."""
    (one, other), _ = along_the_ridge(0.5)
    for start, end in ((one, other), (other, one)):
        loss, gradient = network.loss_and_gradient(start, saddle(1.0)[1])
        step = {n: end[n] - start[n] for n in end}
        moved = sum(float((gradient[n] * step[n]).sum()) for n in step)
        squares = sum(float(step[n].square().sum()) for n in step)
        taylor = loss.item() + moved + between(one, other)[1] / 2 * squares
        assert taylor < network.losses(end, saddle(1.0)[1]).item() - 0.1
