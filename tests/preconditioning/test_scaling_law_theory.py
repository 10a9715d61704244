"""Exact moments, the coefficient of 1/n and its consequences against limits, simulation and hand-known cases."""

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook.preconditioning import attention_output as output
from attnbook.preconditioning import law_constants as theory
from attnbook.preconditioning.scaling_law import penalty_bias
from attnbook.preconditioning.scaling_law import three_gradients as models
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
    if step == "away":  # each of the three terms is seen
        assert all(abs(float(term)) > 0.02 * abs(coefficient) for term in theory.bias_terms(*layers, target=target))


def test_output_moments_are_those_of_attention_on_drawn_keys():
    key_query, query, n = torch.tensor([[0.5, 0.2], [-0.3, 0.4]]).double(), number(1.1, -0.8), 13
    found = output.output_moments(key_query, query[None], [n])
    keys = torch.as_tensor(np.random.default_rng(5).standard_normal((100_000, n, 2)))
    keys[:, 0] = query
    weights = torch.softmax(keys @ (key_query @ query), dim=1)
    off = (weights[..., None] * keys).sum(1) - key_query @ query
    second = off[:, :, None] * off[:, None]
    for exact, sample in ((found.shift[0, 0], off), (found.second[0, 0], second)):
        assert ((exact - sample.mean(0)).abs() < 5 * sample.std(0) / 100_000**0.5).all()


def test_leading_bias_and_covariance_are_the_limits_of_the_exact_ones():
    key_query, query = torch.tensor([[0.3, 0.2], [-0.1, 0.25]]).double(), torch.tensor([[0.9, -1.2]]).double()
    counts = (50_000, 100_000)
    found = output.output_moments(key_query, query, counts)
    for exact, leading in (
        (found.shift[:, 0], output.output_bias(key_query, query)[0]),
        (found.covariance[:, 0], output.output_covariance(key_query, query)[0]),
    ):
        limit = 2 * counts[1] * exact[1] - counts[0] * exact[0]
        torch.testing.assert_close(limit, leading, rtol=1e-4, atol=1e-6)


def test_in_one_dimension_the_coefficient_is_the_short_formula():
    for s in (0.05, 0.3):
        root = torch.full((1, 1), s**0.5, dtype=torch.float64)
        general = float(theory.bias_coefficient(root, root, target=root * root))
        assert general == pytest.approx(float(theory.scalar_bias_coefficient(s)), rel=1e-12)
        assert 1e7 * output.scalar_bias(s, [10**7])[0] == pytest.approx(general, rel=1e-3)


def test_the_exponent_is_one_up_to_the_threshold_and_continuous_there():
    assert theory.heavy_tail_exponent(0.5) == 1
    assert theory.heavy_tail_exponent(0.5 + 1e-9) == pytest.approx(1, abs=1e-6)
    assert theory.heavy_tail_exponent(1.0) == pytest.approx((5**0.5 - 1) / 2)
    assert theory.heavy_tail_exponent(3.0) < theory.heavy_tail_exponent(2.0)


def test_the_oracle_bias_is_what_its_fixed_point_shows():
    best = minimum(values=(0.12, 0.1, 0.08), outputs=5)
    members = tuple(layer.expand(1, -1, -1) for layer in best)
    n = number(1e5)
    records, _ = models.oracle_descent(best[0] @ best[1], n, members, step_size=4.0, steps=120)
    constant = theory.oracle_bias(*best)
    assert float(records[-1] * n**2) == pytest.approx(constant, rel=1e-3)
    assert theory.oracle_bias_bound(*best) > constant


def test_at_the_exact_fixed_point_the_gradient_vanishes_and_the_excess_has_the_leading_order():
    target = minimum()[0] @ minimum()[1]
    nodes, n = output.gaussian_nodes(2, 8), 5000
    layers = models.exact_fixed_point(target, n, nodes=nodes, iterations=8)
    leaves = [layer.clone().requires_grad_() for layer in layers]
    value, key_query = leaves
    loss = (value @ key_query - target).square().sum() / 2
    penalty = (value.mT @ value - key_query @ key_query.mT).square().sum() / 8
    total = loss + penalty + output.expected_excess(*leaves, target=target, n_keys=(n,), nodes=nodes).sum()
    slopes = torch.autograd.grad(total, leaves)
    # What is left pulls along the rotations of the minimum, at order 1 / n^2.
    assert max(float(slope.abs().max()) for slope in slopes) < 1 / n**2 * 10
    assert float(models.excess(layers, target)) * n**2 == pytest.approx(theory.oracle_bias(*minimum()), rel=0.02)


def test_the_pull_along_the_descent_ends_at_that_of_the_minimum():
    value, key_query = minimum()
    target = value @ key_query
    along = models.pull_along_descent(target, (0.5 * value, 0.5 * key_query), step_size=1.0, steps=80)
    at = models.pull_along_descent(target, (value, key_query), step_size=0.0, steps=0)
    leaves = [layer.clone().requires_grad_() for layer in (value, key_query)]
    pulls = torch.autograd.grad(theory.bias_coefficient(*leaves, target=target), leaves)
    assert float(at[0]) == pytest.approx(float(sum(pull.square().sum() for pull in pulls)))
    assert float(along[-1]) == pytest.approx(float(at[0]), rel=1e-3)


def test_infinitely_many_samples_leave_the_population_descent_unbiased():
    best = minimum()
    start = tuple(0.5 * layer.expand(1, -1, -1) for layer in best)
    records, _ = models.oracle_descent(best[0] @ best[1], number(float("inf")), start, step_size=2.0, steps=80)
    assert records[-1] < 1e-20 < records[0]
    late = float(torch.log(records[40] / records[39]))
    assert late == pytest.approx(2 * np.log(1 - 2 * 2.0 * 0.08), rel=0.02)


def test_the_spectral_start_has_the_predicted_excess():
    """Singular values of one and no noise: only the estimated covariance is paid for."""
    values, n = (0.12, 0.1, 0.08), 1500
    target = torch.cat([torch.diag(number(*values)), torch.zeros(2, 3, dtype=torch.float64)])
    x = torch.as_tensor(np.random.default_rng(2).standard_normal((200, n, 3)))
    from attnbook.preconditioning.optimizer import spectral_init

    scaled = n * models.excess(spectral_init(x, x @ target.mT), target)
    predicted = theory.spectral_start_constant(np.array(values), 5, noise=0.0)
    assert float(scaled.mean()) == pytest.approx(predicted, rel=0.15)


def test_distance_to_the_minima_forgets_rotations_and_sees_shrinking():
    best = minimum(values=(0.12, 0.1, 0.08), outputs=5)
    target = best[0] @ best[1]
    turn = torch.linalg.qr(torch.as_tensor(np.random.default_rng(1).standard_normal((3, 3))))[0]
    assert float(models.distance_to_minima((best[0] @ turn, turn.mT @ best[1]), target)) < 1e-12
    half = models.distance_to_minima((best[0] / 2, best[1] / 2), target)
    assert float(half) == pytest.approx(2 * 0.3 / 4)


def test_the_whitened_descents_agree_with_the_raw_algorithm():
    """Data descent on one data set is the two-sided Algorithm 1, step by step, with automatic differentiation."""
    from attnbook.preconditioning.attention import predict
    from attnbook.preconditioning.population import balance_penalty, sample_covariance

    best = minimum(values=(0.3, 0.2, 0.1), outputs=5)
    rng = np.random.default_rng(4)
    x = torch.as_tensor(rng.standard_normal((1, 29, 3)))
    y = x @ (best[0] @ best[1]).mT + 0.1 * torch.as_tensor(rng.standard_normal((1, 29, 5)))
    start = tuple(layer.expand(1, -1, -1).clone() for layer in moved(best))
    found = models.data_descent(best[0] @ best[1], (x, y), start, step_size=0.3, steps=3)
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
    end = models.excess((value, key_query), best[0] @ best[1])
    torch.testing.assert_close(found[-1], end, rtol=1e-4, atol=0)


@given(power=st.sampled_from([1.0, 2.0]), rate=st.floats(0.05, 1.0), compute=st.floats(1e6, 1e10))
def test_no_neighbouring_split_is_better_than_the_best(power, rate, compute):
    n, t, error = theory.best_split(0.5, power, 0.1, rate, compute)
    assert n**2 * t == pytest.approx(compute)

    def at(steps):
        return 0.5 * (compute / steps) ** (-power / 2) + 0.1 * np.exp(-rate * steps)

    assert error == pytest.approx(at(t))
    assert at(t) <= min(at(1.01 * t), at(t / 1.01)) * (1 + 1e-7)


def test_aligned_errors_add_before_they_are_squared():
    n, t, error = theory.best_split(0.5, 2.0, 0.1, 0.3, 1e6, alignment=1.0)
    assert error == pytest.approx((np.sqrt(0.5) / n + np.sqrt(0.1 * np.exp(-0.3 * t))) ** 2)
    assert t > theory.best_split(0.5, 2.0, 0.1, 0.3, 1e6)[1]
    with pytest.raises(ValueError, match="alignment"):
        theory.best_split(0.5, 2.0, 0.1, 0.3, 1e6, alignment=1.5)


def test_finer_grids_of_keys_change_nothing_but_rounding():
    from attnbook.preconditioning.attention_output import scalar_bias

    once, twice = (scalar_bias(1.0, [128, 2**32], per_unit=2, finer=f) for f in (1, 2))
    np.testing.assert_allclose(once, twice, rtol=1e-10)
    with pytest.raises(ValueError, match="finer"):
        scalar_bias(1.0, [128], finer=0)


def test_the_regulariser_is_biased_as_wishart_moments_say():
    """In one dimension at u = v = 1: E S(1 - S)S / 2 with S = chi2(n) / n, by hand, for both layers."""
    one, n = torch.ones(1, 1, dtype=torch.float64), 17
    found = penalty_bias.penalty_bias((one, one), one, [n], draws=400_000, rng=np.random.default_rng(1))
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
    with pytest.raises(ValueError, match="rate"):
        theory.best_split(1.0, 1.0, 1.0, -1.0, 1.0)
