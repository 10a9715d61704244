"""Training bounds: formulas against what they bound, models against brute force."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from attnbook.multi_head import certificate as tracked
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import curvature_bounds as segment_theory
from attnbook.multi_head import head_groups, layer, readings, starts
from attnbook.multi_head.curvature_bounds import LARGEST_CUMULANT, loss_constants
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import (
    certificates,
    equal_heads,
    promises,
    samples,
    segments,
    training_bounds,
    wide,
    wide_training,
)
from attnbook.multi_head.tangent_kernel import linearised_outputs, tangent_features, tangent_margin

START = theory.GoodStart(n_tokens=5, dimension=7, token_norm=1.1, margin=0.8)
SMOKE = training_bounds.Settings.smoke()


def test_corollary_is_theorem_one_with_the_target_of_loss_one_over_k():
    by_hand = 2 / 100 + 5 * (2 + math.log(100)) ** 2 / (4 * 0.8**2 * 0.5 * 100)
    assert theory.final_bound(START, 100, 0.5) == pytest.approx(by_hand, rel=1e-12)


def test_order_of_heads_grows_like_the_claim_says():
    wider = dataclasses.replace(START, dimension=14, n_tokens=10, margin=0.4)
    assert theory.order_heads(wider, 50) / theory.order_heads(START, 50) == pytest.approx(4 * 2 * 2**6)


@pytest.mark.parametrize("steps", [3, 1000])
@pytest.mark.parametrize("n_heads", [2, 10**6])
def test_reconstructed_step_size_is_safe_for_every_head_the_theorem_allows(steps, n_heads):
    """One over smoothness where a head is as large as it can be after one more step of size at most one."""
    largest = START.head_bound + 3 * theory.target_distance(START, steps)
    sizes = {"n_tokens": START.n_tokens, "dimension": START.dimension, "n_heads": n_heads}
    gradient = loss_constants(**sizes, token_norm=START.token_norm, largest_head_norm=largest).gradient
    after = loss_constants(**sizes, token_norm=START.token_norm, largest_head_norm=largest + gradient)
    assert theory.reconstructed_step_size(START, steps, n_heads) <= 1 / after.smoothness


@pytest.mark.parametrize("n_heads", [2, 10**6])
def test_chain_step_size_is_one_over_smoothness_at_the_largest_head_reached(n_heads):
    """The descent lemma asks for no more, so the reconstructed step size is far smaller."""
    far = theory.target_distance(START, 100)
    constants = loss_constants(
        n_tokens=5, dimension=7, n_heads=n_heads, token_norm=1.1, largest_head_norm=1 + readings.REACH * far
    )
    assert readings.chain_step_size(START, 100, n_heads) == pytest.approx(1 / constants.smoothness)
    assert 1 + math.sqrt(13 / 3) < readings.REACH
    assert theory.reconstructed_step_size(START, 100, n_heads) < 0.01 / constants.smoothness


def test_chain_heads_keep_weak_convexity_up_to_three_target_distances():
    n_heads, far = readings.chain_heads(START, 100), theory.target_distance(START, 100)
    excess = segment_theory.condition_excess(
        n_tokens=START.n_tokens,
        dimension=START.dimension,
        n_heads=round(n_heads),
        token_norm=START.token_norm,
        head_norm=START.head_bound + readings.REACH * far,
        distance=3 * far,
    )
    assert excess == pytest.approx(1, rel=1e-6)


def test_four_steps_with_both_changes_are_the_tracked_certificate():
    changed = readings.four_steps(START, 3.0, dimension_free=True, tracked=True)
    sizes = {"n_tokens": 5, "dimension": 7, "token_norm": 1.1, "start_head_norm": START.head_bound}
    assert changed.heads == pytest.approx(tracked.heads_for(3.0, **sizes))
    expected = tracked.tracked_heads(n_heads=changed.heads, **sizes).step_size
    assert changed.step_size(changed.heads) == pytest.approx(expected)


def test_readings_name_the_same_conditions_for_heads_and_steps():
    assert set(readings.HEADS) == set(readings.STEP_SIZES)
    assert readings.STEP_SIZES["corollary"](START, 50, 1e6) == theory.order_step_size(START, 50)
    assert readings.STEP_SIZES["theorem"](START, 50, 1e6) == theory.theorem_step_size(START, 50)


def test_a_tracked_head_never_needs_more_room_than_it_has():
    """The movement (4.25/18) beta_1/beta_3' allowed by the proof, over all sizes."""
    assert 4.25 / 18 * 2 / LARGEST_CUMULANT < tracked.ROOM
    for token_norm in (1.0, 1.7, 5.0):
        for head_norm in (0.0, 0.3, 2.0, 50.0):
            constants = loss_constants(
                n_tokens=3, dimension=5, n_heads=1, token_norm=token_norm, largest_head_norm=head_norm
            )
            assert 4.25 / 18 * constants.gradient / constants.dimension_free_curvature < tracked.ROOM


def test_tracked_distance_and_heads_are_inverse_and_do_not_depend_on_the_dimension():
    sizes = {"n_tokens": 5, "token_norm": 1.1, "start_head_norm": 0.4}
    heads = [tracked.heads_for(3.0, dimension=d, **sizes) for d in (7, 700)]
    assert heads[0] == heads[1]
    allowed = tracked.tracked_heads(dimension=7, n_heads=heads[0], **sizes)
    assert allowed.distance == pytest.approx(3.0)
    constants = loss_constants(n_tokens=5, dimension=7, n_heads=1, token_norm=1.1, largest_head_norm=0.4 + tracked.ROOM)
    assert allowed.step_size == pytest.approx(
        1 / (constants.dimension_free_curvature / math.sqrt(heads[0]) + constants.gradient**2 / 4)
    )


def test_regret_of_a_convex_quadratic_obeys_the_bound():
    """Gradient descent on x^2/2 with any target, step size at most one: known by hand."""
    for eta, target in ((1.0, 0.0), (0.3, 0.7), (0.05, 2.0)):
        x, values = 3.0, []
        for _ in range(40):
            x -= eta * x
            values.append(x * x / 2)
        bound = theory.regret_bound(target_loss=target**2 / 2, distance=3.0 - target, step_size=eta, steps=40)
        assert np.mean(values) <= bound


def test_informative_steps_solves_for_the_level():
    assert theory.informative_steps(lambda k: 7 / k, level=0.5) == pytest.approx(14)
    found = theory.informative_steps(lambda k: theory.final_bound(START, k, 0.5))
    assert theory.final_bound(START, found, 0.5) == pytest.approx(math.log(2))


def test_root_two_repairs_the_target_distance():
    """exp(B - 2B - log K) is exp(-B)/K: at most 1/K."""
    for steps in (1, 100, 10**6):
        assert theory.scaled_worst_loss(START, steps, stretch=math.sqrt(2)) <= math.exp(-1)
        assert theory.scaled_worst_loss(START, steps) > theory.scaled_worst_loss(START, steps, stretch=1.1)


def test_nearer_end_is_attained_by_a_parabola():
    """1 - c(t - 1/2)^2/2 has second derivative -c times its maximum, and ends of 1 - c/8."""
    for excess in (0.2, 1.0, 3.0):
        c = excess / 2
        assert 1 / (1 - c / 8) == pytest.approx(segment_theory.nearer_end_rise(excess))
    assert segment_theory.nearer_end_rise(1.0) < 4 / 3  # the factor of Proposition 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dataclasses.replace(START, margin=0.0), "margin"),
        (lambda: dataclasses.replace(START, output_bound=0.5), "output_bound"),
        (lambda: theory.regret_bound(target_loss=0.1, distance=1, step_size=0, steps=3), "step_size"),
        (lambda: theory.target_distance(START, 0.5), "steps"),
        (lambda: theory.final_bound(START, 10, -1.0), "step_size"),
        (lambda: theory.order_heads(START, 0), "steps"),
        (lambda: readings.chain_heads(START, math.inf), "steps"),
        (lambda: readings.chain_step_size(START, 10, 0), "n_heads"),
        (lambda: readings.four_steps(START, 0.0), "distance"),
        (lambda: theory.theorem_step_size(START, 0), "steps"),
        (lambda: theory.order_step_size(START, 0), "steps"),
        (lambda: theory.reconstructed_step_size(START, 10, 0), "n_heads"),
        (lambda: theory.scaled_worst_loss(START, 10, stretch=0), "stretch"),
        (lambda: theory.informative_steps(lambda k: 1.0), "bound"),
        (
            lambda: tracked.tracked_heads(n_tokens=3, dimension=5, n_heads=0.5, token_norm=1.0, start_head_norm=0.0),
            "n_heads",
        ),
        (lambda: tracked.heads_for(-1.0, n_tokens=3, dimension=5, token_norm=1.0, start_head_norm=0.0), "distance"),
        (lambda: segment_theory.nearer_end_rise(16.0), "excess"),
        (
            lambda: segment_theory.condition_excess(
                n_tokens=3, dimension=5, n_heads=2, token_norm=1.0, head_norm=1.0, distance=-1.0
            ),
            "distance",
        ),
        (
            lambda: segment_theory.allowed_distance(n_tokens=3, dimension=5, n_heads=2, token_norm=0.5, head_norm=1.0),
            "token_norm",
        ),
        (lambda: promises.step_size(START, 10, "wish", n_heads=4, start_head_norm=0.4), "reading"),
        (lambda: dataclasses.replace(SMOKE, heads=(4,)), "heads"),
        (lambda: dataclasses.replace(SMOKE, heads=(4, 16, 64)), "heads"),
        (lambda: dataclasses.replace(SMOKE, step_size=0.0), "step_size"),
        (lambda: dataclasses.replace(SMOKE, horizons=(10, 1000)), "horizons"),
        (lambda: dataclasses.replace(SMOKE, seeds=()), "seeds"),
        (lambda: dataclasses.replace(SMOKE, first_phase_samples=0), "first_phase_samples"),
        (lambda: dataclasses.replace(certificates.Settings.smoke(), trained=7.0), "trained"),
        (lambda: dataclasses.replace(certificates.Settings.smoke(), distances=1), "distances"),
        (lambda: dataclasses.replace(equal_heads.Settings.smoke(), few=1), "few"),
        (lambda: dataclasses.replace(segments.Settings.smoke(), heads=(1, 2)), "heads"),
        (lambda: dataclasses.replace(segments.Settings.smoke(), multiples=(2.0, 3.0)), "multiples"),
        (lambda: dataclasses.replace(segments.Settings.smoke(), positions=2), "positions"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Models


@pytest.fixture(scope="module")
def small():
    mixture = Mixture(n_tokens=5, dimension=7, n_patterns=3, label_noise=0.05, other_noise=0.05, free_noise=0.2)
    drawn = samples.draw(mixture, 11, (0, 1))
    start = starts.first_phase(*samples.draw(mixture, 60, (0, 1), purpose="first phase")[:2])
    return drawn, start, torch.tensor([[3.0, 2.0], [2.0, 3.0]], dtype=torch.float64)


def test_tangent_direction_has_the_margin_it_claims_in_the_whole_network(small):
    drawn, start, counts = small
    found = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts)
    member = {name: tensor[:1] for name, tensor in start.items()}
    whole = head_groups.expand(member, counts=counts[:1])
    features = tangent_features(whole, drawn.tokens[:1])[0]
    direction = head_groups.expand({name: t[:1] for name, t in found.direction.items()}, counts=counts[:1])
    flat = torch.cat([direction[name].flatten(2) for name in ("decoder", "key_query")], dim=2).flatten()
    assert flat.norm().item() == pytest.approx(1)
    margin = (drawn.labels[0] * (features @ flat)).min().item()
    assert math.sqrt(2) * margin == pytest.approx(found.margin[0], rel=1e-6)


def test_tangent_margin_does_not_depend_on_the_number_of_heads_or_their_signs(small):
    drawn, start, counts = small
    few = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts).margin
    many = tangent_margin(start, drawn.tokens, drawn.labels, counts=counts.flip(1) * 1e6).margin
    np.testing.assert_allclose(few, many, rtol=1e-8)


def test_linearised_outputs_are_gradient_descent_on_the_features(small):
    drawn, start, counts = small
    first = layer.outputs(start, drawn.tokens, counts=counts)
    features = tangent_features(start, drawn.tokens, counts=counts)
    weights = torch.zeros(2, features.shape[2], dtype=torch.float64, requires_grad=True)
    for _ in range(7):
        out = first + (features * weights[:, None]).sum(2)
        loss = torch.nn.functional.softplus(-drawn.labels * out).mean(1).sum()
        weights = (weights - 0.3 * torch.autograd.grad(loss, weights)[0]).detach().requires_grad_()
    expected = (first + (features * weights[:, None]).sum(2)).detach()
    got = linearised_outputs(first, drawn.labels, features @ features.mT, step_size=0.3, steps=7)
    torch.testing.assert_close(got, expected)
    for name, number in {"step_size": 0.0, "steps": 0}.items():
        with pytest.raises(ValueError, match=name):
            linearised_outputs(
                first, drawn.labels, features @ features.mT, **{"step_size": 0.3, "steps": 7, name: number}
            )


def test_averages_and_distances_are_those_of_the_whole_network():
    settings = dataclasses.replace(SMOKE, heads=(4, 64, 128), steps=13, horizons=(13,), seeds=(3,))
    stack = wide.draw(settings, settings.seeds, torch.device("cpu"))
    found = wide_training.train(stack, 0.5, 13, (0, 5, 13))
    counts = stack.counts[:1]
    start = head_groups.expand({n: t[:1] for n, t in stack.start.items()}, counts=counts)
    whole = {n: t.clone() for n, t in start.items()}
    tokens, labels = stack.tokens[:1], stack.labels[:1]
    losses = []
    for _ in range(13):
        leaves = {n: t.requires_grad_() for n, t in whole.items()}
        out = layer.outputs(leaves, tokens)
        loss = torch.nn.functional.softplus(-labels * out).mean()
        gradient = torch.autograd.grad(loss, list(leaves.values()))
        whole = {n: (t - 0.5 * g).detach() for (n, t), g in zip(leaves.items(), gradient, strict=True)}
        losses.append(torch.nn.functional.softplus(-labels * layer.outputs(whole, tokens)).mean().item())
    np.testing.assert_allclose(found["average"][0], [found["loss"][0, 0], np.mean(losses[:5]), np.mean(losses)])
    moved = torch.cat([(whole[n] - start[n]).flatten(2) for n in ("decoder", "key_query")], dim=2)
    assert found["distance"][0, -1] == pytest.approx(moved.norm().item())
    assert found["largest_move"][0, -1] == pytest.approx(moved.norm(dim=2).max().item())


def test_both_signs_always_occur():
    for seed in range(30):
        assert wide._signs(seed, 2).tolist() == [1.0, 1.0]
