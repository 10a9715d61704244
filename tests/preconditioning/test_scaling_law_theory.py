"""Exact moments, the coefficient of 1/n and its consequences against limits, simulation and hand-known cases."""

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.preconditioning import attention_output as output
from attnbook.preconditioning import law_constants as theory
from attnbook.preconditioning import weight_moments as moments
from attnbook.preconditioning.manifold import minimum as balanced
from attnbook.preconditioning.manifold import split
from attnbook.preconditioning.scaling_law import descents, finite_keys
from attnbook.preconditioning.weight_moments import weight_moments, weight_powers


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


def minimum(seed=0, values=(0.15, 0.08), outputs=3):
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((size, len(values))))[0] for size in (outputs, len(values)))
    root = np.sqrt(np.diag(values))
    return torch.as_tensor(left @ root), torch.as_tensor(root @ right.T)


def moved(layers, size=0.1, seed=7):
    rng = np.random.default_rng(seed)
    return tuple(layer + size * torch.as_tensor(rng.standard_normal(layer.shape)) for layer in layers)


@pytest.mark.parametrize("own", [0.0, 1.3, -2.0])
def test_without_score_variance_the_weights_are_known_by_hand(own):
    found = weight_moments(number(0.0), number(own), [7])
    alone = np.exp(own) / (np.exp(own) + 6)
    assert float(found.self_weight) == pytest.approx(alone, rel=1e-8)
    assert float(found.self_square) == pytest.approx(alone**2, rel=1e-8)
    assert float(found.others_square) == pytest.approx((1 - alone) ** 2 / 6, rel=1e-8)


@given(scale=st.floats(0.01, 3.0), own=st.floats(-3.0, 3.0), n=st.integers(3, 2000))
def test_the_weights_of_all_keys_sum_to_one(scale, own, n):
    itself, other = weight_powers(number(scale), number(own), n, 1)
    assert float(itself + (n - 1) * other) == pytest.approx(1, abs=1e-8)


def test_moments_are_those_of_a_simulation_and_do_not_depend_on_the_company_of_queries():
    scale, own, n = number(0.3, 1.1, 2.3), number(0.4, -0.7, 2.0), 11
    together = weight_moments(scale, own, [n])
    draws = np.random.default_rng(3).standard_normal((200_000, n - 1))
    for q in range(3):
        r = float(scale[q])
        scores = np.exp(r * draws)
        total = scores.sum(1) + np.exp(float(own[q]))
        alone, weights = np.exp(float(own[q])) / total, scores / total[:, None]
        shift = (weights * (draws - r)).sum(1)
        pairs = {
            "self_weight": alone, "self_square": alone**2, "shift": shift, "shift_square": shift**2,
            "self_shift": alone * shift, "others_square": (weights**2).sum(1),
            "spread": (weights * (draws - r) ** 2).sum(1),
        }  # fmt: skip
        single = weight_moments(scale[q : q + 1], own[q : q + 1], [n])
        for name, sample in pairs.items():
            exact = float(getattr(together, name)[0, q])
            assert exact == pytest.approx(sample.mean(), abs=5 * sample.std() / 200_000**0.5), name
            assert exact == pytest.approx(float(getattr(single, name)), rel=1e-7, abs=1e-12), name


@pytest.mark.parametrize("step", ["at the optimum", "away"])
def test_the_coefficient_is_the_limit_of_the_exact_bias(step):
    best = minimum()
    layers = best if step == "at the optimum" else moved(best, 0.06)
    target, counts = best[0] @ best[1], (10**6, 2 * 10**6)
    first, second = torch.tensor(counts) * output.expected_excess(
        *layers, target=target, n_keys=counts, nodes=output.gaussian_nodes(2, 18)
    )
    extrapolated, coefficient = float(2 * second - first), float(theory.bias_coefficient(*layers, target=target))
    assert extrapolated == pytest.approx(coefficient, rel=5e-4)


def test_output_moments_are_those_of_attention_on_drawn_keys():
    key_query, query, n = torch.tensor([[0.5, 0.2], [-0.3, 0.4]]).double(), number(1.1, -0.8), 13
    found = output.output_moments(key_query, query[None], [n])
    keys = torch.as_tensor(np.random.default_rng(5).standard_normal((100_000, n, 2)))
    keys[:, 0] = query
    weights = torch.softmax(keys @ (key_query @ query), dim=1)
    off = (weights[..., None] * keys).sum(1) - key_query @ query
    second, square = off[:, :, None] * off[:, None], (weights[..., None] * keys).mT @ keys
    for exact, sample in ((found.shift[0, 0], off), (found.second[0, 0], second), (found.keys[0, 0], square)):
        assert ((exact - sample.mean(0)).abs() < 5 * sample.std(0) / 100_000**0.5).all()


def test_leading_bias_and_covariance_are_the_limits_of_the_exact_ones():
    key_query, query = torch.tensor([[0.3, 0.2], [-0.1, 0.25]]).double(), torch.tensor([[0.9, -1.2]]).double()
    counts = (50_000, 100_000)
    found = output.output_moments(key_query, query, counts)
    exact = found.shift[:, 0], found.covariance[:, 0]
    for one, leading in zip(exact, output.leading_moments(key_query, query), strict=True):
        limit = 2 * counts[1] * one[1] - counts[0] * one[0]
        torch.testing.assert_close(limit, leading[0], rtol=1e-4, atol=1e-6)


@given(scale=st.floats(0.0, 2.0), own=st.floats(-2.0, 2.0), n=st.integers(3, 200), power=st.integers(1, 4))
def test_no_moment_exceeds_the_bound_of_lemma_9_and_without_score_variance_both_are_the_uniform_weight(
    scale, own, n, power
):
    arguments = number(scale), number(own), n, power
    for exact, bound in zip(weight_powers(*arguments), moments.weight_power_bounds(*arguments), strict=True):
        assert float(exact) <= float(bound) * (1 + 1e-8)
    uniform = moments.weight_power_bounds(number(0.0), number(0.0), n, power)
    assert [float(bound) for bound in uniform] == pytest.approx([n**-power] * 2)


def test_by_parts_the_other_keys_shift_the_output_by_the_square_of_one_weight():
    """The exact form of the second term of (22), which the bound of Lemma 11 starts from."""
    scale, own, n = number(0.7), number(0.4), 23
    found, (_, square) = weight_moments(scale, own, [n]), weight_powers(scale, own, n, 2)
    itself, _ = weight_powers(scale, own, n, 1)
    # sum_j a_j (g_j - r) = -r (n - 1) E a_j^2, as the other weights sum to one minus that of the query.
    assert float(found.shift) == pytest.approx(-0.7 * (n - 1) * float(square), rel=1e-8)
    assert float(found.self_weight) == pytest.approx(float(itself), rel=1e-8)


def test_in_one_dimension_the_coefficient_is_the_short_formula():
    for s in (0.05, 0.3):
        root = torch.full((1, 1), s**0.5, dtype=torch.float64)
        general = float(theory.bias_coefficient(root, root, target=root * root))
        assert general == pytest.approx(s * (1 - s) / 2 * (1 - 2 * s) ** -1.5, rel=1e-12)
        assert 1e7 * output.scalar_bias(s, [10**7])[0] == pytest.approx(general, rel=1e-3)


def test_the_exponent_is_one_up_to_the_threshold_and_continuous_there():
    assert theory.heavy_tail_exponent(0.5) == 1
    assert theory.heavy_tail_exponent(0.5 + 1e-9) == pytest.approx(1, abs=1e-6)
    assert theory.heavy_tail_exponent(1.0) == pytest.approx((5**0.5 - 1) / 2)
    assert theory.heavy_tail_exponent(3.0) < theory.heavy_tail_exponent(2.0)


def test_the_oracle_bias_is_what_its_fixed_point_shows():
    best = balanced(torch.as_tensor(np.diag([0.12, 0.1, 0.08, 0, 0])[:, :3].copy()))
    target = split(best)[0] @ split(best)[1].mT
    points = descents.oracle_descent(target, number(1e5), best, step_size=4.0, steps=120)
    scaled = descents.excess(points[-1], target) * 1e10
    assert float(scaled) == pytest.approx(theory.oracle_constant(target), rel=1e-3)


def test_at_the_exact_fixed_point_the_gradient_vanishes_and_the_excess_has_the_leading_order():
    target = minimum()[0] @ minimum()[1]
    nodes, n = output.gaussian_nodes(2, 8), 5000
    leaf = descents.exact_fixed_point(target, n, nodes=nodes, iterations=8).requires_grad_()
    value, key_query = split(leaf)[0], split(leaf)[1].mT
    loss = (value @ key_query - target).square().sum() / 2
    penalty = (value.mT @ value - key_query @ key_query.mT).square().sum() / 8
    total = loss + penalty + output.expected_excess(value, key_query, target=target, n_keys=(n,), nodes=nodes).sum()
    (slope,) = torch.autograd.grad(total, leaf)
    # What is left pulls along the rotations of the minimum, at order 1 / n^2.
    assert float(slope.abs().max()) < 1 / n**2 * 10
    scaled = float(descents.excess(leaf, target).detach()) * n**2
    assert scaled == pytest.approx(theory.oracle_constant(target), rel=0.02)


def test_the_expected_gradient_is_the_mean_over_fresh_batches():
    """The gradient of the oracle, by quadrature, against the very code that the runs average."""
    from attnbook.preconditioning.attention import loss_and_gradient

    value, key_query = (layer.clone().requires_grad_() for layer in moved(minimum()))
    target, n, batches = minimum()[0] @ minimum()[1], 11, 40_000
    bias = output.expected_excess(value, key_query, target=target, n_keys=(n,), nodes=output.gaussian_nodes(2, 16))
    exact = torch.autograd.grad(bias.sum() + (value @ key_query - target).square().sum() / 2, (value, key_query))
    x = torch.as_tensor(np.random.default_rng(8).standard_normal((batches, n, 2)))
    repeated = {
        name: layer.detach().expand(batches, -1, -1) for name, layer in (("value", value), ("key_query", key_query))
    }
    drawn = loss_and_gradient(repeated, (x, x @ target.mT))[1]
    for gradient, sample in zip(exact, drawn.values(), strict=True):
        assert ((gradient - sample.mean(0)).abs() < 5 * sample.std(0) / batches**0.5).all()


def test_infinitely_many_samples_leave_the_population_descent_unbiased():
    target = minimum()[0] @ minimum()[1]
    points = descents.oracle_descent(target, number(float("inf")), 0.5 * balanced(target), step_size=2.0, steps=80)
    records = descents.excess(points, target)
    assert records[-1] < 1e-20 < records[0]
    late = float(torch.log(records[40] / records[39]))
    assert late == pytest.approx(2 * np.log(1 - 2 * 2.0 * 0.08), rel=0.02)
    pulls = theory.bias_gradient(points[:, 0], target=target).square().sum((-2, -1))
    assert float(pulls[-1]) == pytest.approx(
        float(theory.bias_gradient(balanced(target), target=target).square().sum())
    )


def test_the_spectral_start_has_the_predicted_excess():
    """Singular values of one and no noise: only the estimated covariance is paid for."""
    values, n = (0.12, 0.1, 0.08), 1500
    target = torch.cat([torch.diag(number(*values)), torch.zeros(2, 3, dtype=torch.float64)])
    x = torch.as_tensor(np.random.default_rng(2).standard_normal((200, n, 3)))
    from attnbook.preconditioning.optimizer import spectral_init

    value, key_query = spectral_init(x, x @ target.mT)
    scaled = n * descents.excess(torch.cat([value, key_query.mT], dim=-2), target)
    predicted = theory.spectral_start_constant(np.array(values), 5, noise=0.0)
    assert float(scaled.mean()) == pytest.approx(predicted, rel=0.15)


def test_the_whitened_descents_agree_with_the_raw_algorithm():
    """Data descent on one data set is the two-sided Algorithm 1, step by step, with automatic differentiation."""
    from attnbook.preconditioning.attention import predict
    from attnbook.preconditioning.population import balance_penalty, sample_covariance

    best = minimum(values=(0.3, 0.2, 0.1), outputs=5)
    rng = np.random.default_rng(4)
    x = torch.as_tensor(rng.standard_normal((1, 29, 3)))
    y = x @ (best[0] @ best[1]).mT + 0.1 * torch.as_tensor(rng.standard_normal((1, 29, 5)))
    start = tuple(layer.expand(1, -1, -1).clone() for layer in moved(best))
    point = torch.cat([start[0], start[1].mT], dim=-2)
    found = descents.data_descent(best[0] @ best[1], (x, y), point, step_size=0.3, steps=3)
    value, key_query = (layer.clone() for layer in start)
    estimate = sample_covariance(x)
    inverse = torch.linalg.inv(estimate)
    for _ in range(3):
        value.requires_grad_(), key_query.requires_grad_()
        loss = (predict(value, key_query, x) - y).square().sum() / 58
        loss = loss + balance_penalty(value, key_query, covariance=estimate).sum()
        for_value, for_key_query = torch.autograd.grad(loss, (value, key_query))
        value = (value - 0.3 * for_value @ inverse).detach()
        key_query = (key_query - 0.3 * inverse @ for_key_query @ inverse).detach()
    end = descents.excess(torch.cat([value, key_query.mT], dim=-2), best[0] @ best[1])
    torch.testing.assert_close(found[-1], end, rtol=1e-4, atol=0)


def test_finer_grids_of_keys_change_nothing_but_rounding(monkeypatch):
    once = output.scalar_bias(1.0, [128, 2**32], per_unit=2)
    monkeypatch.setattr(moments, "SPACING", moments.SPACING / 2)
    half = output.scalar_bias(1.0, [128, 2**32], per_unit=2)
    monkeypatch.setattr(moments, "STEP", moments.STEP / 2)
    np.testing.assert_allclose(once, half, rtol=1e-10)
    np.testing.assert_allclose(once, output.scalar_bias(1.0, [128, 2**32], per_unit=2), rtol=1e-10)


def test_the_regulariser_is_biased_as_wishart_moments_say():
    """In one dimension at u = v = 1: E S(1 - S)S / 2 with S = chi2(n) / n, by hand, for both layers."""
    one, n = torch.ones(1, 1, dtype=torch.float64), finite_keys.COORDINATES["penalty_n"][0]
    found = finite_keys.penalty_bias((one, one), one, 400_000, np.random.default_rng(1))
    second, third = 1 + 2 / n, (1 + 2 / n) * (1 + 4 / n)
    fourth = third * (1 + 6 / n)
    expected = (second - third) ** 2 / 4 + (third - fourth) ** 2 / 4
    assert found[0] == pytest.approx(expected, rel=0.03)


def test_arguments_out_of_range_are_refused_by_name():
    with pytest.raises(ValueError, match="key_query: expected singular values below"):
        theory.bias_coefficient(torch.ones(1, 1), torch.ones(1, 1), target=torch.ones(1, 1))
    with pytest.raises(ValueError, match="n_keys: expected"):
        weight_moments(number(1.0), number(0.0), [2])
    with pytest.raises(ValueError, match="score_scale"):
        weight_moments(number(-1.0), number(0.0), [5])
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="self_score"):
        weight_moments(number(1.0, 2.0), number(0.0), [5])
    with pytest.raises(ValueError, match="per_axis"):
        output.gaussian_nodes(2, 5)
    with pytest.raises(ValueError, match="largest"):
        output.scalar_bias(0.0, [5])
