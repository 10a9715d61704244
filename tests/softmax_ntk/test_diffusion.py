"""Forward and backward process, mixture, Tweedie, inputs and the linear model, each against something independent."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbook.core.rng import stream
from attnbook.softmax_ntk.linearised import change_of_weights, predict_linearised
from attnbook.softmax_ntk.mixtures import (
    Mixture,
    mixture_denoiser,
    mixture_log_density,
    mixture_quantiles,
    mixture_score,
)
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.reverse_sde import reverse_times, sample, tabulate, wasserstein
from attnbook.softmax_ntk.score_matching import Schedule, diffuse, draw_noisy_sample, network_input, tweedie_score
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

SCHEDULE = Schedule()
PLANE = Mixture(((0.5, 0.1), (-0.3, 0.4), (0.0, -0.6)), 0.2)
LINE = Mixture(((-0.6,), (0.6,)), 0.15)


@pytest.fixture
def rng():
    return stream(0, "tests of diffusion")


@pytest.fixture
def drawn(rng):
    return draw_noisy_sample(PLANE.draw(11, rng=rng), rng=rng, schedule=SCHEDULE)


def test_signal_solves_its_differential_equation():
    t, h = np.array([0.1, 0.7, 1.4]), 1e-6
    slope = (SCHEDULE.signal(t + h) - SCHEDULE.signal(t - h)) / (2 * h)
    np.testing.assert_allclose(slope, -SCHEDULE.rate(t) * SCHEDULE.signal(t) / 2, rtol=1e-8)
    np.testing.assert_allclose(SCHEDULE.signal(t) ** 2 + SCHEDULE.noise(t), 1)


def test_diffused_points_have_the_stated_mean_and_variance(rng):
    times = np.full(40_000, 0.3)
    x = diffuse(np.full((40_000, 1), 0.8), times, rng=rng, schedule=SCHEDULE)
    assert abs(x.mean() - 0.8 * SCHEDULE.signal(0.3)) < 0.02
    assert abs(x.var() / SCHEDULE.noise(0.3) - 1) < 0.03


@pytest.mark.parametrize("time", [0.0, 0.049, 1.51, np.nan])
def test_times_outside_the_range_are_refused(time):
    x, t = np.zeros((1, 1)), np.array([time])
    for call in (
        lambda: diffuse(x, t, rng=np.random.default_rng(0), schedule=SCHEDULE),
        lambda: mixture_score(LINE, t, x, schedule=SCHEDULE),
        lambda: tweedie_score(x, t, x, schedule=SCHEDULE),
        lambda: network_input(x, t, schedule=SCHEDULE),
    ):
        with pytest.raises(ValueError, match=r"times: expected times from 0\.05 to 1\.5"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"base": -0.1}, "positive"), ({"first": 0.0}, "first"), ({"first": 2.0}, "last"), ({"last": np.inf}, "last")],
)
def test_impossible_schedules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**options)


def test_score_is_the_gradient_of_the_log_density(drawn):
    score, h = mixture_score(PLANE, drawn.times, drawn.points, schedule=SCHEDULE), 1e-6
    for axis in range(2):
        step = h * np.eye(2)[axis]
        ends = [mixture_log_density(PLANE, drawn.times, drawn.points + k * step, schedule=SCHEDULE) for k in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), score[:, axis], atol=1e-6)


def test_density_integrates_to_one():
    grid = np.linspace(-6, 6, 4001)
    log = mixture_log_density(LINE, np.full(4001, 0.2), grid[:, None], schedule=SCHEDULE)
    assert np.exp(log).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-6)


def test_one_normal_mode_has_a_linear_denoiser_known_by_hand():
    """Shrink towards the mean by alpha s^2 / (alpha^2 s^2 + beta); no shrinking where there is no noise."""
    one, t, x = Mixture(((0.5,),), 0.4), np.array([0.6]), np.array([[1.3]])
    a, b = SCHEDULE.signal(0.6), SCHEDULE.noise(0.6)
    expected = 0.5 + a * 0.16 / (a**2 * 0.16 + b) * (1.3 - a * 0.5)
    assert mixture_denoiser(one, t, x, schedule=SCHEDULE)[0, 0] == pytest.approx(float(expected))


def test_denoiser_is_the_average_of_the_clean_points(rng):
    """Against a histogram of clean points behind noisy ones that fall together."""
    clean = LINE.draw(400_000, rng=rng)
    x = diffuse(clean, np.full(len(clean), 0.4), rng=rng, schedule=SCHEDULE)
    for centre in (-0.5, 0.1, 0.9):
        near = np.abs(x[:, 0] - centre) < 0.02
        truth = mixture_denoiser(LINE, np.array([0.4]), np.array([[centre]]), schedule=SCHEDULE)
        assert abs(clean[near].mean() - truth[0, 0]) < 0.02


def test_tweedie_turns_the_denoiser_into_the_score_and_a_wrong_scale_does_not(drawn):
    denoised = mixture_denoiser(PLANE, drawn.times, drawn.points, schedule=SCHEDULE)
    score = mixture_score(PLANE, drawn.times, drawn.points, schedule=SCHEDULE)
    of = tweedie_score(denoised, drawn.times, drawn.points, schedule=SCHEDULE)
    np.testing.assert_allclose(of, score, atol=1e-12)
    assert np.abs(tweedie_score(-denoised, drawn.times, drawn.points, schedule=SCHEDULE) - score).max() > 0.1


def test_inputs_are_short_and_the_clip_is_radial():
    x, t = np.array([[30.0, 40.0], [0.3, -0.4]]), np.array([1.5, 0.1])
    inputs = network_input(x, t, schedule=SCHEDULE)
    assert np.linalg.norm(inputs, axis=1).max() < 1
    np.testing.assert_allclose(inputs[0, :2], [0.48, 0.64])
    np.testing.assert_allclose(inputs[1, :2], 0.8 * x[1] / 2.5)
    np.testing.assert_allclose(inputs[:, 3], 0.42)
    with pytest.raises(ValueError, match="radius"):
        network_input(x, t, schedule=SCHEDULE, radius=0.0)


@pytest.mark.parametrize(("means", "width"), [((), 0.1), (((),), 0.1), (((0.0,), (0.0, 1.0)), 0.1), (((0.0,),), 0.0)])
def test_impossible_mixtures_are_refused(means, width):
    with pytest.raises(ValueError, match=r"means|width"):
        Mixture(means, width)


def test_quantiles_are_those_of_a_large_sample(rng):
    x = diffuse(LINE.draw(100_000, rng=rng), np.full(100_000, 0.05), rng=rng, schedule=SCHEDULE)
    ideal = mixture_quantiles(LINE, 0.05, 1000, schedule=SCHEDULE)
    assert (np.diff(ideal) > 0).all()
    assert wasserstein(x[:, 0], ideal) < 0.01
    with pytest.raises(ValueError, match="one dimension"):
        mixture_quantiles(PLANE, 0.05, 10, schedule=SCHEDULE)


def test_distance_of_samples_known_by_hand():
    assert wasserstein(np.array([0.0, 1.0]), np.array([0.5])) == pytest.approx(0.5)
    assert wasserstein(np.arange(6.0), np.arange(6.0)[::-1] + 2) == pytest.approx(2)
    assert wasserstein(np.array([0.0, 0.0, 3.0]), np.array([0.0, 3.0])) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="got 0 and 1"):
        wasserstein(np.array([]), np.array([1.0]))


def test_times_fall_and_are_finest_at_the_end():
    times = reverse_times(20, schedule=SCHEDULE)
    assert (times[0], times[-1]) == (pytest.approx(1.5), pytest.approx(0.05))
    assert (np.diff(np.diff(times)) > 0).all()
    for bad in ({"n_steps": 0}, {"n_steps": 3, "power": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            reverse_times(schedule=SCHEDULE, **bad)


def exact(time, x):
    return mixture_denoiser(LINE, np.full(len(x), time), x, schedule=SCHEDULE)


def distance(denoiser, **options):
    made, _ = sample(denoiser, 1500, dimension=1, rng=stream(1, "sde"), schedule=SCHEDULE, **options)
    return wasserstein(made[:, 0], mixture_quantiles(LINE, 0.05, 1500, schedule=SCHEDULE))


def test_true_score_leads_back_and_wrong_ones_do_not():
    """Against the distribution at the first time; a sign error or a score that knows nothing must be seen."""
    assert distance(exact) < 0.06
    assert distance(lambda _, x: np.zeros_like(x)) > 0.3
    assert distance(lambda time, x: 0.5 * exact(time, x)) > 0.2
    mirrored = distance(lambda time, x: exact(time, x) + 0.2)
    assert mirrored > 0.1


def test_a_normal_distribution_is_sampled_exactly_in_mean_and_spread():
    one = Mixture(((0.4,),), 0.3)
    made, kept = sample(
        lambda time, x: mixture_denoiser(one, np.full(len(x), time), x, schedule=SCHEDULE),
        3000, dimension=1, rng=stream(2, "sde"), schedule=SCHEDULE, n_steps=200, keep=(0, 200),
    )  # fmt: skip
    a, b = SCHEDULE.signal(0.05), SCHEDULE.noise(0.05)
    assert abs(made.mean() - a * 0.4) < 0.03
    assert abs(made.std() / np.sqrt(a**2 * 0.09 + b) - 1) < 0.05
    np.testing.assert_array_equal(kept[1], made)
    assert abs(kept[0].std() - 1) < 0.05


def test_a_table_answers_as_the_denoiser_does():
    times, x = reverse_times(7, schedule=SCHEDULE), np.linspace(-2.2, 2.2, 57)[:, None]
    table = tabulate(exact, times, reach=2.5, points=501)
    for time in times:
        assert np.abs(table(float(time), x) - exact(float(time), x)).max() < 2e-3
    with pytest.raises(KeyError):
        table(0.123, x)
    with pytest.raises(ValueError, match="points"):
        tabulate(exact, times, reach=2.5, points=1)


def test_a_denoiser_of_wrong_shape_or_without_limits_is_refused():
    with pytest.raises(ValueError, match=r"denoiser: expected an answer of shape \(5, 1\)"):
        sample(lambda _, x: x[:, 0], 5, dimension=1, rng=stream(0, "x"), schedule=SCHEDULE, n_steps=3)
    with pytest.raises(FloatingPointError, match="time"):
        sample(lambda _, x: x * np.inf, 5, dimension=1, rng=stream(0, "x"), schedule=SCHEDULE, n_steps=3)
    for bad in ({"count": 0}, {"dimension": 0}, {"keep": (4,)}):
        options = {"count": 5, "dimension": 1, "keep": ()} | bad
        with pytest.raises(ValueError, match="expected"):
            sample(exact, rng=stream(0, "x"), schedule=SCHEDULE, n_steps=3, **options)


@pytest.mark.parametrize("activation", ["softmax", "exp", "relu"])
@pytest.mark.parametrize("start", ["paired", "independent"])
def test_linear_model_in_weights_equals_kernel_regression_and_finite_differences(activation, start, rng):
    weights = [draw_weights(14, 3, 2, rng=rng, start=start) for _ in range(2)]
    networks = Networks.stack(activation, weights)
    x, points = (torch.tensor(rng.standard_normal((2, n, 3))) for n in (5, 7))
    c = torch.tensor(rng.standard_normal((2, 10)))
    moved = change_of_weights(networks, x, c.view(2, 2, 5))
    both = predict_linearised(networks, torch.stack([moved, -2 * moved], dim=1), points)
    by_kernel = (ntk_gram(networks, points, x) @ c[:, :, None]).view(2, 2, 7)
    torch.testing.assert_close(both[:, 0], by_kernel)
    torch.testing.assert_close(both[:, 1], -2 * by_kernel)
    h = 1e-6
    ends = [predict(replace(networks, first_layer=networks.first_layer + k * h * moved), points) for k in (1, -1)]
    torch.testing.assert_close(both[:, 0], (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-7)


def test_linear_model_refuses_shapes_that_do_not_fit():
    networks = Networks.stack("softmax", [draw_weights(4, 3, 1, rng=stream(0, "w"))])
    x = torch.zeros(1, 5, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="coefficients"):
        change_of_weights(networks, x, torch.zeros(1, 2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="displacements"):
        predict_linearised(networks, networks.first_layer[:, None, :, :2], x)
