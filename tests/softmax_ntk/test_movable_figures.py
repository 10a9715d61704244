"""The formulas behind the movable figures, each against something independent, and the figures themselves."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook.softmax_ntk.attention_logits import uniform_condition, values_descent
from attnbook.softmax_ntk.figures import diffusion as diffusion_figures
from attnbook.softmax_ntk.figures import kernel_regression as regression_figures
from attnbook.softmax_ntk.figures import kernel_stability as stability_figures
from attnbook.softmax_ntk.figures import lazy_training as lazy_figures
from attnbook.softmax_ntk.figures import to_self_attention as attention_figures
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.lazy_bounds import machine_loss
from attnbook.softmax_ntk.mixtures import Mixture, line_shortfall, mixture_denoiser, mixture_label_spread
from attnbook.softmax_ntk.ntk import kernel_gradient_flow
from attnbook.softmax_ntk.regression_bounds import residuals_with_jump
from attnbook.softmax_ntk.score_matching import Schedule
from attnbook.softmax_ntk.stability_bounds import polynomials_on_sphere
from attnbook.softmax_ntk.tables import diffusion as diffusion_tables
from attnbook.softmax_ntk.tables import kernel_regression as regression_tables
from attnbook.softmax_ntk.tables import kernel_stability as stability_tables
from attnbook.softmax_ntk.tables import lazy_training as lazy_tables
from attnbook.softmax_ntk.tables import to_self_attention as attention_tables

SCHEDULE = Schedule()
LINE = Mixture(((-0.6,), (0.6,)), 0.15)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def on_sphere(rng, count, dimension):
    x = rng.standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("n_inputs", [2, 3, 5])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_count_of_polynomials_is_the_rank_of_their_kernel(rng, n_inputs, degree):
    x = on_sphere(rng, 83, n_inputs)
    powers = sum((x @ x.T) ** k for k in range(degree + 1))
    assert np.linalg.matrix_rank(powers, tol=1e-8) == polynomials_on_sphere(degree, n_inputs=n_inputs)


def test_relu_kernel_is_linear_plus_even(rng):
    x = on_sphere(rng, 7, 5)
    odd = infinite_width_kernel("relu", x) - infinite_width_kernel("relu", x, -x)
    np.testing.assert_allclose(odd, x @ x.T / 2, atol=1e-12)


def test_a_smaller_scale_makes_the_staircase_steeper(rng):
    spectra = [np.linalg.eigvalsh(infinite_width_kernel("softmax", on_sphere(rng, 31, 4), scale=s)) for s in (0.5, 4.0)]
    assert spectra[0][-1] / spectra[0][0] > 100 * spectra[1][-1] / spectra[1][0]


def test_loss_of_the_machine_is_that_of_its_predictions(rng):
    """Predictions at the samples after every number of steps, from another function."""
    a = rng.standard_normal((7, 7))
    kernel, labels = a @ a.T, rng.standard_normal(7)
    values, basis = np.linalg.eigh(kernel)
    found = machine_loss(values, (basis.T @ labels) ** 2, fraction=1.3, steps=5)
    steps = [float(t) for t in range(6)]
    k = torch.tensor(kernel)
    flow = kernel_gradient_flow(k, torch.tensor(labels), 1.3 / values[-1], steps, cross=k).numpy()
    np.testing.assert_allclose(found, ((flow - labels) ** 2).sum(axis=1) / (labels**2).sum(), rtol=1e-8)


def test_the_largest_allowed_step_only_changes_a_sign():
    np.testing.assert_allclose(machine_loss(np.array([0.0, 3.0]), np.array([0.0, 1.0]), fraction=2.0, steps=3), 1.0)


def test_residual_with_a_jump_solves_its_equation():
    """Euler steps of the network's own equation, with the kernel halved at the jump."""
    times, jump = np.linspace(0, 5, 50_001), 1.3
    machine, network, allowed = residuals_with_jump(times, jump=jump, share=0.4)
    rates = np.where(times[:-1] < jump, 1.0, 0.6)
    euler = np.concatenate([[1.0], np.cumprod(1 - rates * (times[1] - times[0]))])
    np.testing.assert_allclose(network, euler, atol=1e-3)
    np.testing.assert_allclose(machine, np.exp(-times))
    assert ((network - machine) <= allowed + 1e-12).all()


def test_gap_of_a_later_jump_is_the_same_gap_scaled():
    times = np.linspace(0, 60, 60_001)
    gaps = [(lambda r: (r[1] - r[0]).max())(residuals_with_jump(times, jump=t, share=0.5)) for t in (0.0, 3.0)]
    assert gaps[1] / gaps[0] == pytest.approx(np.exp(-3), rel=1e-5)


def test_label_spread_is_the_slope_of_the_denoiser():
    """Second-order Tweedie: the conditional variance is beta / alpha times the derivative of the true label."""
    times, points, h = np.full(13, 0.3), np.linspace(-1, 1, 13)[:, None], 1e-5
    up, down = (mixture_denoiser(LINE, times, points + d, schedule=SCHEDULE)[:, 0] for d in (h, -h))
    expected = SCHEDULE.noise(times) / SCHEDULE.signal(times) * (up - down) / (2 * h)
    found = mixture_label_spread(LINE, times, points, schedule=SCHEDULE) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_label_spread_in_the_plane_by_monte_carlo(rng):
    plane = Mixture(((0.5, 0.1), (-0.3, 0.4)), 0.2)
    t, clean = 0.4, plane.draw(400_000, rng=rng)
    noisy = SCHEDULE.signal(t) * clean + np.sqrt(SCHEDULE.noise(t)) * rng.standard_normal(clean.shape)
    near = np.abs(noisy - 0.1).max(axis=1) < 0.05
    truth = mixture_denoiser(plane, np.full(near.sum(), t), noisy[near], schedule=SCHEDULE)
    expected = np.sqrt(((clean[near] - truth) ** 2).sum(axis=1).mean())
    found = mixture_label_spread(plane, np.array([t]), np.array([[0.1, 0.1]]), schedule=SCHEDULE)
    assert found[0] == pytest.approx(expected, rel=0.03)


def test_shortfall_of_the_line_by_monte_carlo(rng):
    t, clean = 0.3, LINE.draw(400_000, rng=rng)[:, 0]
    noisy = SCHEDULE.signal(t) * clean + np.sqrt(SCHEDULE.noise(t)) * rng.standard_normal(len(clean))
    truth = mixture_denoiser(LINE, np.full(len(clean), t), noisy[:, None], schedule=SCHEDULE)[:, 0]
    slope, missed, noise = line_shortfall(LINE, t, schedule=SCHEDULE)
    assert slope == pytest.approx((noisy @ clean) / (noisy @ noisy), rel=0.01)
    assert missed == pytest.approx(np.mean((truth - slope * noisy) ** 2), rel=0.02)
    assert noise == pytest.approx(np.mean((truth - clean) ** 2), rel=0.02)


def test_line_misses_most_in_between_and_nothing_at_the_end():
    missed = [line_shortfall(LINE, t, schedule=SCHEDULE)[1] for t in (0.05, 0.2, 1.5)]
    assert missed[1] > 5 * missed[0]
    assert missed[2] < 1e-6


def test_shortfall_refuses_data_with_another_mean():
    with pytest.raises(ValueError, match="mean 0"):
        line_shortfall(Mixture(((0.1,),), 0.2), 0.3, schedule=SCHEDULE)


def test_descent_on_the_values_is_descent(rng):
    """The same path by the gradient of a quadratic with the curvatures of contexts at uniform attention."""
    norm, length = 1.7, 5
    mean = np.array([norm, 0.0])
    moments = np.outer(mean, mean) + np.eye(2) / length
    errors, step = np.ones(2), 2 / np.trace(moments)
    path = [errors]
    for _ in range(4):
        errors = errors - step * moments @ errors
        path.append(errors)
    np.testing.assert_allclose(values_descent(norm, length, steps=4), np.stack(path), rtol=1e-10)


def test_without_a_shared_mean_one_step_is_a_solve():
    assert not values_descent(0.0, 8, steps=1)[1].any()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: polynomials_on_sphere(-1, n_inputs=4), "degree"),
        (lambda: machine_loss(np.array([1.0]), np.array([-1.0]), fraction=1.0, steps=1), "parts"),
        (lambda: residuals_with_jump(np.zeros(2), jump=0.0, share=0.7), "share"),
        (lambda: values_descent(-1.0, 2, steps=1), "mean_norm"),
    ],
)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_all_pictures_can_be_drawn_and_say_their_numbers():
    falling = np.array([1.0, 0.1, 0.01])
    assert stability_figures.degrees_frame(falling, falling, [1, 5], 0.5).axes
    assert "condition number 100 for softmax" in stability_tables.degrees_text(falling, falling, 0.5)
    shares = np.array([0.2, 1.0])
    losses = machine_loss(shares, np.ones(2), fraction=1.5, steps=20)
    assert lazy_figures.linear_steps_frame(shares, 1 - 1.5 * shares, {"1.5": losses, "1": losses}).axes
    assert "keeps 0.70" in lazy_tables.linear_steps_text(1 - 1.5 * shares, losses)
    assert "never falls below 1e-30" in lazy_tables.linear_steps_text(1 - 1.5 * shares, losses, 1e-30)
    times = np.linspace(0, 8, 401)
    residuals = residuals_with_jump(times, jump=3.0, share=0.5)
    assert regression_figures.late_drift_frame(times, residuals, 3.0).axes
    assert "5.0% of the residual" in regression_tables.late_drift_text(times, residuals, 3.0)
    points = np.linspace(-2, 2, 7)
    assert diffusion_figures.denoiser_frame(0.2, points, points, abs(points), 1.0, abs(points)).axes
    assert "less than 0.0001" in diffusion_tables.denoiser_text(1.5, 1e-9, 0.4)
    condition = uniform_condition(2.0, 8)
    assert attention_figures.values_frame(values_descent(2.0, 8, steps=60), condition, 0.01).axes
    assert "takes 38 to" in attention_tables.values_text(condition, 0.01)
    assert "takes 1 to" in attention_tables.values_text(1.0, 0.01)
