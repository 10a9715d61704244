"""Forward and backward process, mixture, Tweedie, inputs and the linear model, each against something independent."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr
from scipy.stats import wasserstein_distance

import attnbook
from attnbook import lab, ledger
from attnbook.core.rng import stream
from attnbook.softmax_ntk import denoisers
from attnbook.softmax_ntk.denoisers import Machine, few_directions, function_of_class, pseudo_labels
from attnbook.softmax_ntk.linearised import change_of_weights, outputs_and_change
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.reverse_sde import particles_back, reverse_times, sample, snapshots
from attnbook.softmax_ntk.score_matching import (
    NoisySample,
    Schedule,
    StoppingRule,
    draw_noisy_sample,
    held_out_stop,
    network_input,
)
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, predict

CHAPTER = Path(__file__).parents[2] / "chapters" / "softmax_ntk" / "diffusion.py"
own = lab.load_script(CHAPTER)
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


def test_diffused_points_are_distributed_like_paths_of_the_forward_process_made_of_small_steps(rng):
    x, h = np.full((20_000, 1), 0.8), 0.002
    for step in range(300):
        growth = h * float(SCHEDULE.rate((step + 0.5) * h))
        x = x * (1 - growth / 2) + np.sqrt(growth) * rng.standard_normal(x.shape)
    at_once = SCHEDULE.diffuse(np.full((20_000, 1), 0.8), np.full(20_000, 0.6), rng=rng)
    for found in (x, at_once):
        assert abs(found.mean() - 0.8 * SCHEDULE.signal(0.6)) < 0.025
        assert abs(found.var() / SCHEDULE.noise(0.6) - 1) < 0.04


@pytest.mark.parametrize("time", [0.0, 0.049, 1.51, np.nan])
def test_times_outside_the_range_are_refused(time):
    x, t = np.zeros((1, 1)), np.array([time])
    for call in (
        lambda: SCHEDULE.diffuse(x, t, rng=np.random.default_rng(0)),
        lambda: LINE.denoiser(t, x),
        lambda: SCHEDULE.score(x, t, x),
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


def test_score_of_the_denoiser_is_the_gradient_of_the_log_density_and_a_wrong_sign_is_not(drawn):
    denoised, h = PLANE.denoiser(drawn.times, drawn.points), 1e-6
    score = SCHEDULE.score(denoised, drawn.times, drawn.points)
    assert np.abs(SCHEDULE.score(-denoised, drawn.times, drawn.points) - score).max() > 0.1
    for axis in range(2):
        step = h * np.eye(2)[axis]
        ends = [PLANE.log_density(drawn.times, drawn.points + k * step) for k in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), score[:, axis], atol=1e-6)


def test_density_integrates_to_one():
    grid = np.linspace(-6, 6, 4001)
    log = LINE.log_density(np.full(4001, 0.2), grid[:, None])
    assert np.exp(log).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-6)


def test_one_normal_mode_has_a_linear_denoiser_known_by_hand():
    """Shrink towards the mean by alpha s^2 / (alpha^2 s^2 + beta); no shrinking where there is no noise."""
    one, t, x = Mixture(((0.5,),), 0.4), np.array([0.6]), np.array([[1.3]])
    a, b = SCHEDULE.signal(0.6), SCHEDULE.noise(0.6)
    expected = 0.5 + a * 0.16 / (a**2 * 0.16 + b) * (1.3 - a * 0.5)
    assert one.denoiser(t, x)[0, 0] == pytest.approx(float(expected))


def test_denoiser_is_the_average_of_the_clean_points(rng):
    """Against a histogram of clean points behind noisy ones that fall together."""
    clean = LINE.draw(400_000, rng=rng)
    x = SCHEDULE.diffuse(clean, np.full(len(clean), 0.4), rng=rng)
    for centre in (-0.5, 0.1, 0.9):
        near = np.abs(x[:, 0] - centre) < 0.02
        truth = LINE.denoiser(np.array([0.4]), np.array([[centre]]))
        assert abs(clean[near].mean() - truth[0, 0]) < 0.02


def test_variance_of_the_label_is_the_slope_of_the_denoiser(drawn):
    """Differentiating Tweedie's formula: f' = alpha v / beta, so that the largest spread is a Lipschitz constant."""
    times, points, h = np.full(13, 0.3), np.linspace(-1, 1, 13)[:, None], 1e-5
    up, down = (LINE.denoiser(times, points + d)[:, 0] for d in (h, -h))
    expected = SCHEDULE.noise(times) / SCHEDULE.signal(times) * (up - down) / (2 * h)
    found = LINE.label_spread(times, points) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_label_spread_in_the_plane_by_monte_carlo(rng):
    plane = Mixture(((0.5, 0.1), (-0.3, 0.4)), 0.2)
    t, clean = 0.4, plane.draw(400_000, rng=rng)
    noisy = SCHEDULE.signal(t) * clean + np.sqrt(SCHEDULE.noise(t)) * rng.standard_normal(clean.shape)
    near = np.abs(noisy - 0.1).max(axis=1) < 0.05
    truth = plane.denoiser(np.full(near.sum(), t), noisy[near])
    expected = np.sqrt(((clean[near] - truth) ** 2).sum(axis=1).mean())
    found = plane.label_spread(np.array([t]), np.array([[0.1, 0.1]]))
    assert found[0] == pytest.approx(expected, rel=0.03)


def test_best_line_is_least_squares_and_leaves_a_residual_unrelated_to_the_noisy_point(rng):
    t, clean = 0.3, LINE.draw(400_000, rng=rng)[:, 0]
    noisy = SCHEDULE.signal(t) * clean + np.sqrt(SCHEDULE.noise(t)) * rng.standard_normal(len(clean))
    slope = SCHEDULE.linear_slope(LINE.second_moment, t)
    assert slope == pytest.approx((noisy @ clean) / (noisy @ noisy), rel=0.01)
    with pytest.raises(ValueError, match="second_moment"):
        SCHEDULE.linear_slope(0.0, t)


def test_held_out_labels_stop_at_the_best_step_within_patience():
    steps = [1, 2, 4, 8, 16, 32]
    losses = np.array([5.0, 3.0, 4.0, 3.5, 2.0, 9.0])
    assert [held_out_stop(losses, steps, patience=p) for p in (1.5, 2.0, 7.9, 8.0)] == [0, 1, 1, 4]
    assert held_out_stop(losses[::-1].copy(), steps, patience=4.0) == 1
    for wrong in ({"losses": losses[:3]}, {"patience": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            held_out_stop(**{"losses": losses, "steps": steps, "patience": 2.0} | wrong)


def test_inputs_are_short_and_the_clip_is_radial():
    x, t = np.array([[30.0, 40.0], [0.3, -0.4]]), np.array([1.5, 0.1])
    inputs = network_input(x, t, schedule=SCHEDULE)
    assert np.linalg.norm(inputs, axis=1).max() < 1
    np.testing.assert_allclose(inputs[0, :2], [0.48, 0.64])
    np.testing.assert_allclose(inputs[1, :2], 0.8 * x[1] / 2.5)
    np.testing.assert_allclose(inputs[:, 2], [0.42, 0.42 * (0.2 / 1.5 - 1)])  # the clock runs from -0.42 to 0.42
    np.testing.assert_allclose(inputs[:, 3], 0.42)
    with pytest.raises(ValueError, match="radius"):
        network_input(x, t, schedule=SCHEDULE, radius=0.0)


@pytest.mark.parametrize(("means", "width"), [((), 0.1), (((),), 0.1), (((0.0,), (0.0, 1.0)), 0.1), (((0.0,),), 0.0)])
def test_impossible_mixtures_are_refused(means, width):
    with pytest.raises(ValueError, match=r"means|width"):
        Mixture(means, width)


def test_quantiles_are_those_of_a_large_sample(rng):
    x = SCHEDULE.diffuse(LINE.draw(100_000, rng=rng), np.full(100_000, 0.05), rng=rng)
    ideal = LINE.quantiles(0.05, 1000)
    assert (np.diff(ideal) > 0).all()
    assert wasserstein_distance(x[:, 0], ideal) < 0.01
    with pytest.raises(ValueError, match="one dimension"):
        PLANE.quantiles(0.05, 10)


def test_times_fall_and_are_finest_at_the_end():
    times = reverse_times(20, schedule=SCHEDULE)
    assert (times[0], times[-1]) == (pytest.approx(1.5), pytest.approx(0.05))
    assert (np.diff(np.diff(times)) > 0).all()
    with pytest.raises(ValueError, match="n_steps"):
        reverse_times(0, schedule=SCHEDULE)


def exact(time, x):
    return LINE.denoiser(np.full(len(x), time), x)


def distance(denoiser, **options):
    made = sample(denoiser, 1500, dimension=1, rng=stream(1, "sde"), schedule=SCHEDULE, **options)
    return wasserstein_distance(made[:, 0], LINE.quantiles(0.05, 1500))


def test_true_score_leads_back_and_wrong_ones_do_not():
    """Against the distribution at the first time; a sign error or a score that knows nothing must be seen."""
    assert distance(exact) < 0.06
    assert distance(lambda _, x: np.zeros_like(x)) > 0.3
    assert distance(lambda time, x: 0.5 * exact(time, x)) > 0.2
    mirrored = distance(lambda time, x: exact(time, x) + 0.2)
    assert mirrored > 0.1


def test_a_normal_distribution_is_sampled_exactly_in_mean_and_spread():
    one = Mixture(((0.4,),), 0.3)
    made = sample(
        lambda time, x: one.denoiser(np.full(len(x), time), x),
        3000, dimension=1, rng=stream(2, "sde"), schedule=SCHEDULE, n_steps=200,
    )  # fmt: skip
    a, b = SCHEDULE.signal(0.05), SCHEDULE.noise(0.05)
    assert abs(made.mean() - a * 0.4) < 0.03
    assert abs(made.std() / np.sqrt(a**2 * 0.09 + b) - 1) < 0.05


def test_a_denoiser_of_wrong_shape_or_without_limits_is_refused():
    with pytest.raises(ValueError, match=r"denoiser: expected an answer of shape \(5, 1\)"):
        sample(lambda _, x: x[:, 0], 5, dimension=1, rng=stream(0, "x"), schedule=SCHEDULE, n_steps=3)
    with pytest.raises(FloatingPointError, match="time"):
        sample(lambda _, x: x * np.inf, 5, dimension=1, rng=stream(0, "x"), schedule=SCHEDULE, n_steps=3)
    for bad in ({"count": 0}, {"dimension": 0}):
        options = {"count": 5, "dimension": 1} | bad
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
    found = outputs_and_change(networks, points, moved)[1]
    torch.testing.assert_close(found, (ntk_gram(networks, points, x) @ c[:, :, None]).view(2, 2, 7))
    h = 1e-6
    ends = [predict(replace(networks, first_layer=networks.first_layer + k * h * moved), points) for k in (1, -1)]
    torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-7)


# The chapter's experiments


MADE = {
    made.id: made
    for made in (own.fresh_noise, own.noisy_copies, own.forward_and_back, own.score_learning, own.score_sizes)
}


@pytest.fixture(scope="module")
def stored():
    return {name: made.stored() for name, made in MADE.items()}


def scaled(**factors):
    return lambda d: d.assign({name: factor * d[name] for name, factor in factors.items()})


def other_samplers(**exchange):
    """Put one sampler's numbers in another's place."""

    def changed(data):
        names = [exchange.get(str(name), str(name)) for name in data.sampler.values]
        moved = data[["wasserstein", "gap"]].sel(sampler=names).assign_coords(sampler=data.sampler)
        return data.assign(moved)

    return changed


def flat(data):
    """As if longer training did no harm."""
    running = np.minimum.accumulate(data.error.values, axis=data.error.get_axis_num("step"))
    return data.assign(error=(data.error.dims, running))


def terms(term, value):
    return lambda d: d.assign(terms=d.terms.where(d.term != term, value))


def stopped(factor, copies):
    """Move the error at one number of copies."""
    return lambda d: d.assign(stopped_error=d.stopped_error.where(d.copies != copies, factor * d.stopped_error))


def nearer(factor, name):
    return lambda d: d.assign(near=d.near.where(d.sampler != name, factor * d.near))


RED = {
    "softmax_ntk.fresh_noise": {
        "SN-6.FRESH": lambda d: d.assign(stopped_error=d.stopped_error[:, ::-1].assign_coords(copies=d.copies)),
        "SN-6.DRAW": nearer(0.7, "softmax network"),
    },
    "softmax_ntk.noisy_copies": {"SN-6.COPIES": stopped(2, 8)},
    "softmax_ntk.forward_and_back": {
        "SN-6.NOISE": scaled(signal=2),
        "SN-6.DSM": lambda d: d.assign(loss_gap=d.loss_gap * xr.DataArray([1.0, 1.05, 1.1], dims="model")),
        "SN-6.SDE": scaled(gap=3),
        "SN-A6.1": scaled(clipped=5),
    },
    "softmax_ntk.score_learning": {
        "SN-6.FIT": scaled(stopped_error=3),
        "SN-6.ES": flat,
        "SN-6.ES-step": scaled(stopped_error=2),
        "SN-6.ES-2d": lambda d: d.assign(error=d.error.where(d.task == "line", 1.0)),
        "SN-6.Z-order": terms("label mismatch", 2e-3),
        "SN-6.FIT-line": scaled(stopped_error=0.3),
        "SN-6.STOP": other_samplers(weighted="line"),
    },
    "softmax_ntk.score_sizes": {
        "SN-A6.5": lambda d: d.assign(class_stopped_error=d.class_stopped_error[:, ::-1].assign_coords(size=d.size)),
        "SN-6.N-line": lambda d: d.assign(stopped_error=d.stopped_error[:, ::-1].assign_coords(size=d.size)),
    },
}
PARTS = {
    "softmax_ntk.fresh_noise": [
        ("SN-6.FRESH", stopped(0.1, 1)),
        ("SN-6.FRESH", stopped(3, 1000)),
        ("SN-6.DRAW", nearer(0.9, "true score")),
        ("SN-6.DRAW", nearer(2, "softmax network")),
    ],
    "softmax_ntk.noisy_copies": [("SN-6.COPIES", stopped(0.5, 1))],
    "softmax_ntk.forward_and_back": [
        ("SN-6.DSM", scaled(label_noise=1.1)),
        ("SN-6.SDE", scaled(wasserstein=3)),
        ("SN-A6.1", scaled(input_norm=1.01)),
        ("SN-A6.1", scaled(lipschitz=2)),
    ],
    "softmax_ntk.score_learning": [
        ("SN-6.FIT", lambda d: d.assign(error=d.error.where(d.task == "line", 3 * d.error))),
        ("SN-6.ES", scaled(train_noise=0.5)),
        ("SN-6.ES-2d", lambda d: d.assign(error=d.error.where((d.task != "line") | (d.step < 10**7), 10 * d.error))),
        ("SN-6.Z-order", scaled(coupling=1e6)),
        ("SN-6.Z-order", terms("early stopping", 0.0)),
        ("SN-6.FIT-line", lambda d: d.assign(line_error=d.line_error.where(d.task == "line", 1.0))),
        ("SN-6.FIT-line", scaled(line_by_labels_error=1.2)),
        ("SN-6.STOP", other_samplers(stopped="weighted")),
        ("SN-6.STOP", scaled(small_error=2)),
        ("SN-6.STOP", scaled(line_error=2)),
    ],
    "softmax_ntk.score_sizes": [
        ("SN-A6.5", lambda d: d.assign(stopped_error=0 * d.stopped_error + 0.01)),
        ("SN-A6.5", lambda d: d.assign(class_stopped_error=0.01 * (d["size"] / 50.0) ** -0.3 + 0 * d.stopped_error)),
        ("SN-6.N-line", scaled(stopped_error=3)),
        ("SN-6.N-line", scaled(stopped_error=0.2)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", MADE)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(MADE[name].measure, stored[name], RED[name], PARTS[name])


def test_every_claim_of_the_chapter_is_measured_or_says_why_not():
    mine = {c.id: c for c in ledger.claims() if c.chapter == "softmax_ntk/diffusion"}
    assert set(mine) - {claim for claims in RED.values() for claim in claims} == {"SN-T6.6", "SN-6.Z"}
    assert [c.id for c in mine.values() if c.untestable] == ["SN-T6.6", "SN-6.Z"]


@pytest.fixture(scope="module")
def small():
    """A task with few samples, in the plane and on the line."""
    rng = stream(5, "small")
    return {name: (task, task.start(128, 3.0, 5), task.draw(13, rng=rng)) for name, task in own.TASKS.items()}


@pytest.mark.parametrize("name", ["line", "plane"])
@pytest.mark.parametrize("weighting", list(own.WEIGHTINGS))
def test_a_machine_is_descent_on_the_linearised_network_with_weighted_squares(small, name, weighting):
    task, start, drawn = small[name]
    machine = Machine(task, start, drawn, own.WEIGHTINGS[weighting])
    weights = own.WEIGHTINGS[weighting](drawn.times)
    assert weighting == "theorem" or weights == pytest.approx(SCHEDULE.signal(drawn.times) ** 2 / machine_noise(drawn))
    gram = ntk_gram(start, machine.inputs)[0].numpy().reshape(task.mixture.dimension, 13, -1, 13)
    found = np.zeros_like(drawn.clean.T)
    for _ in range(7):
        found = found - np.einsum("aibj,bj->ai", gram, weights * (found - drawn.clean.T)) / machine.largest
    np.testing.assert_allclose(machine.predict(machine.after([7], machine.labels), drawn)[0], found, atol=1e-9)
    expected = (weights * ((found - drawn.clean.T) ** 2).sum(0)).mean()
    losses = machine.held_out_losses(machine.after([7], machine.labels), drawn, drawn.clean.T)
    assert losses[0] == pytest.approx(expected, rel=1e-6)


def machine_noise(drawn):
    return 1 - SCHEDULE.signal(drawn.times) ** 2


def test_the_network_follows_its_machine_and_a_wrong_number_of_steps_would_show(small):
    task, start, drawn = small["line"]
    machine = Machine(task, start, drawn)
    trained = task.answers(machine.networks([3, 20])[1], drawn)
    gaps = [np.square(machine.predict(machine.after([n], machine.labels), drawn)[0] - trained).max() for n in (20, 21)]
    assert 20 * gaps[0] < gaps[1]


def test_pseudo_labels_have_the_noise_of_the_labels_around_the_function_of_the_class(small):
    """By hand: true label 0.5, clean point 0.7, and 2 for the function of the class."""
    task, _, drawn = small["plane"]
    labels = pseudo_labels(task, drawn, lambda d: 2 + task.truth(d))
    np.testing.assert_allclose(labels, 2 + drawn.clean.T, atol=1e-12)
    assert np.abs(labels - (2 + 2 * task.truth(drawn) - drawn.clean.T)).max() > 0.1  # what the wrong sign gives


def test_four_times_the_terms_bound_the_error_and_each_term_is_the_one_it_is_called(small):
    task, start, drawn = small["line"]
    machine, test = Machine(task, start, drawn), task.draw(31, rng=stream(6, "test"))
    member = function_of_class(task, start, task.draw(41, rng=stream(6, "class")))
    network = task.answers(machine.networks([5])[0], test)[0]
    found = denoisers.four_terms(machine, test, network, member, 5)
    assert 4 * found.sum() >= np.mean((network - task.truth(test)) ** 2)
    assert found[3] == pytest.approx(np.mean((member(test) - task.truth(test)) ** 2))
    exact = denoisers.four_terms(machine, test, network, task.truth, 5)
    assert exact[1] == pytest.approx(0, abs=1e-20)  # with the truth in the class the labels are the same
    assert exact[3] == 0


def test_the_function_of_the_class_solves_the_ridge_problem(small):
    task, start, drawn = small["plane"]
    kernel = ntk_gram(start, task.inputs(drawn, start.signs))[0].numpy()
    coefficients = np.linalg.solve(kernel + 0.1 * np.eye(26), task.truth(drawn).ravel())
    found = function_of_class(task, start, drawn, 0.1)(drawn)
    np.testing.assert_allclose(found.ravel(), kernel @ coefficients, rtol=1e-8)


def test_tables_answer_as_machines_do(small):
    task, start, drawn = small["line"]
    machine, times = Machine(task, start, drawn), np.array([0.1, 0.7])
    tables = {n: machine.table(n, own.GRID, times) for n in (3, 9)}
    for time in times:
        at = NoisySample(np.full(7, time), np.zeros((7, 1)), np.linspace(-2.4, 2.4, 7)[:, None])
        for n, table in tables.items():
            expected = machine.predict(machine.after([n], machine.labels), at)[0, 0]
            np.testing.assert_allclose(table(time, at.points)[:, 0], expected, atol=1e-3)
    beyond, last = (tables[3](0.7, np.array([[x]])) for x in (9.0, 2.5))
    assert beyond == last
    with pytest.raises(KeyError):
        tables[3](0.123, np.zeros((1, 1)))


def test_the_constant_found_for_the_true_labels_is_that_of_the_closed_form():
    grid = np.linspace(0.05, 1.5, 2001)
    middle = LINE.label_spread(grid, np.zeros((2001, 1))) ** 2
    expected = (SCHEDULE.signal(grid) / SCHEDULE.noise(grid) * middle).max()
    assert own.LINE.largest_slope(own.GRID) == pytest.approx(expected, rel=1e-3)


def test_few_directions_are_those_that_descent_learns(small):
    task, start, drawn = small["line"]
    machine, steps = Machine(task, start, drawn), [1, 10, 1000]
    exact = kernel_gradient_flow(machine.kernel, torch.ones(13).double(), 1 / machine.largest, steps)
    found = few_directions(machine.kernel, torch.ones(13).double(), steps) @ machine.kernel
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=1e-7)
    rough = few_directions(machine.kernel, torch.ones(13).double(), steps, rank=2) @ machine.kernel
    assert (rough - exact).abs().max() > 1e-3
    known = machine.after(steps, machine.labels, rank=13)
    np.testing.assert_allclose(
        machine.predict(known, drawn), machine.predict(machine.after(steps, machine.labels), drawn), atol=1e-7
    )


def test_copies_have_the_same_clean_points_and_new_noise():
    once, many = (denoisers.draw_copies(own.PLANE, 3, 7, copies) for copies in (1, 4))
    for one, several, count in zip(once, many, (7, 4), strict=True):
        np.testing.assert_array_equal(several.clean, np.repeat(one.clean, 4, axis=0))
        assert len(one.points) == count
        assert len(np.unique(several.points[:, 0])) == 4 * count


@pytest.mark.parametrize("copies", [1, 3, 5])
def test_training_on_copies_is_adam_on_the_loss_of_each_step(copies):
    """Against autograd and torch's own optimiser, with the noise of each step drawn here."""
    start = own.PLANE.start(14, 3.0, 2)
    clean = own.PLANE.mixture.draw(7, rng=stream(2, "clean"))
    at = own.PLANE.draw(11, rng=stream(2, "test"))
    found, history = denoisers.train_on_copies(
        own.PLANE, start, clean, copies=copies, steps=5, step_size=0.01, seed=2, errors={"error": (at, at.clean.T)}
    )
    weights = start.first_layer[0].clone().requires_grad_()
    adam = torch.optim.Adam([weights], lr=0.01)
    for step in range(5):
        noisy = draw_noisy_sample(clean, rng=stream(2, "noise", step % copies), schedule=SCHEDULE)
        inputs = torch.from_numpy(network_input(noisy.points, noisy.times, schedule=SCHEDULE, radius=3.2))
        answers = 14 * torch.softmax(inputs @ weights, 1) @ start.signs[0].T
        adam.param_groups[0]["lr"] = 0.01 * (1 - step / 5)
        adam.zero_grad()
        ((answers - torch.from_numpy(clean)) ** 2).sum().div(2).backward()
        adam.step()
    torch.testing.assert_close(found.first_layer[0], weights.detach(), rtol=1e-9, atol=1e-9)
    expected = ((own.PLANE.answers(found, at) - at.clean.T) ** 2).sum(0).mean()
    assert history.records["error"][-1, 0] == pytest.approx(expected)


def test_modes_and_shares_near_them_by_hand():
    centres, radius = LINE.modes(0.3, deviations=1.0)
    np.testing.assert_allclose(centres[:, 0], [-0.6 * SCHEDULE.signal(0.3), 0.6 * SCHEDULE.signal(0.3)])
    assert radius**2 == pytest.approx(SCHEDULE.signal(0.3) ** 2 * 0.15**2 + SCHEDULE.noise(0.3))
    wide = 2 * radius
    points = np.array([[centres[1, 0] + 0.99 * wide], [centres[1, 0] + 1.01 * wide], [0.0], [9.0]])
    assert LINE.share_near(0.3, points) == 0.5


def test_snapshots_are_on_the_way_to_the_samples():
    options = {"dimension": 1, "schedule": SCHEDULE, "n_steps": 9}
    way = list(particles_back(exact, 5, rng=stream(4, "way"), **options))
    assert [time for time, _ in way] == reverse_times(9, schedule=SCHEDULE).tolist()
    seen = snapshots(exact, [0.05, 1.5], 5, rng=stream(4, "way"), **options)
    np.testing.assert_array_equal(seen, [way[-1][1], way[0][1]])
    np.testing.assert_array_equal(seen[0], sample(exact, 5, rng=stream(4, "way"), **options))


def test_the_rule_gives_up_at_its_budget():
    losses = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    assert [StoppingRule(100, budget, per_decade=2).stop(losses) for budget in (9, 10, 1000)] == [3, 10, 100]


def test_error_over_the_line_knows_line_and_truth():
    def asked(answer):
        def denoise(x, t):
            points = x.double().numpy()
            return torch.as_tensor(answer(NoisySample(t[:, 0].double().numpy(), points, points)).T)

        return own.error_over_line(denoise)

    assert asked(own.PLANE.line) == pytest.approx(1, rel=1e-4)
    assert (own.PLANE.draw(11, stream(1, "early")).before(0.7).times <= 0.7).all()
    assert asked(own.PLANE.truth) < 1e-8


def test_a_size_is_stopped_by_its_own_held_out_labels(stored):
    """Each stop is a recorded step within the budget, and the error there is not below the best."""
    sizes, rule = stored["softmax_ntk.score_sizes"], StoppingRule(10_000)
    for kind in ("", "class_"):
        assert set(sizes[f"{kind}stopped"].values.ravel()) <= set(rule.recorded)
        assert (sizes[f"{kind}stopped_error"] >= sizes[f"{kind}best_error"]).all()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [("score_sizes", {"sizes": (100, 50)}, "sizes"), ("fresh_noise", {"copies": (8, 1)}, "copies")],
)
def test_axes_that_do_not_increase_are_refused(name, change, said):
    with pytest.raises(ValueError, match=said):
        getattr(own, name).run(**change)


def test_pictures_draw(stored):
    fresh, _, _, _, sizes = stored.values()
    mine = np.zeros((11, 2))
    drawn = [own.by_copies(fresh, {"mine": {1: 2.0, 8: 1.0}}), own.by_labels(sizes)]
    assert "yours: mine" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    np.testing.assert_array_equal(drawn[1].axes[0].lines[0].get_xdata(), sizes["size"])
    frame = own.clouds(fresh, 0.05, {"mine": mine})
    assert [ax.get_title(loc="left") for ax in frame.axes] == [
        "true score",
        "softmax network",
        "best line",
        "yours: mine",
    ]
    shares = fresh.near.isel(time=-1).sel(sampler="softmax network")
    seed = shares.seed.values[shares.values == shares.values[shares.values.argsort()[2]]][0]
    shown = np.stack(frame.axes[1].lines[0].get_data(), axis=1)
    np.testing.assert_array_equal(shown, fresh.points.sel(seed=seed, sampler="softmax network", time=0.05))
    plt.close("all")
    assert own.cloud_text(fresh, 0.05) != own.cloud_text(fresh, 0.4)
    shares = own.near_a_mode(fresh, {"mine": np.array([[0.0, 0.6], [9.0, 9.0]])}).rows
    assert [(row[0], row[1].text) for row in shares][-1] == ("yours: mine", "50%")


# The program that the page shows


@pytest.fixture(scope="module")
def program():
    """The names that the visible cells define."""
    cells = json.loads(CHAPTER.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {}
    for source in sources:
        if "def train(" in source or "def sample(" in source:
            exec(source, names)
    names["source"] = next(source for source in sources if "def train(" in source)
    return names


def test_the_program_of_the_page_is_short_and_has_no_call_into_the_book(program):
    lines = [line for line in program["source"].splitlines() if line.strip()]
    assert len(lines) <= 45
    assert "attnbook" not in program["source"]


def test_the_program_of_the_page_has_the_noise_and_the_network_of_the_experiment(program):
    g = torch.Generator().manual_seed(1)
    clean = program["clean_points"](20_000, g)
    np.testing.assert_allclose(clean.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(clean.var(0), own.PLANE.mixture.second_moment, rtol=0.05)
    t = torch.tensor([[0.05], [0.4], [1.5]])
    np.testing.assert_allclose(program["signal"](t)[:, 0], SCHEDULE.signal(t[:, 0].double().numpy()), rtol=1e-6)
    points, times = program["noised"](torch.zeros(20_000, 2), g)
    variance = SCHEDULE.noise(times[:, 0].double().numpy())
    assert np.mean(points[:, 0].numpy() ** 2 / variance) == pytest.approx(1, rel=0.05)
    start = own.PLANE.start(14, 3.0, 2, dtype=torch.float32)
    at = NoisySample(np.array([0.05, 0.4, 1.5]), np.zeros((3, 2)), np.array([[0.3, -0.1], [5.0, 1.0], [-1.0, 2.0]]))
    x = torch.as_tensor(at.points, dtype=torch.float32)
    expected = (
        own.PLANE.answers(start, at).T + own.PLANE.answers(replace(start, first_layer=start.first_layer + 1), at).T
    )
    got = program["network"](start.first_layer[0], start.signs[0].T, x, t)
    more = program["network"](start.first_layer[0] + 1, start.signs[0].T, x, t)
    torch.testing.assert_close(got + more, torch.as_tensor(expected, dtype=torch.float32), rtol=1e-4, atol=1e-4)


def test_the_sampler_of_the_page_leads_back_with_the_true_score(program):
    def truth(x, t):
        found = own.PLANE.mixture.denoiser(t[:, 0].double().numpy(), x.double().numpy())
        return torch.as_tensor(found, dtype=torch.float32)

    ends = program["sample"](truth, n=400).double().numpy()
    assert own.PLANE.mixture.share_near(0.05, ends) > 0.8
    assert own.PLANE.mixture.share_near(0.05, program["sample"](lambda x, t: 0.7 * x, n=400).double().numpy()) < 0.5


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(program):
    """The rows of "Change it" and of what breaks it, on the seed of the page."""

    def error(**change):
        return own.error_over_line(program["train"](**change))

    squares, distances = (program["train"](**one) for one in ({}, {"loss": lambda f, x0, t: (f - x0).norm(dim=1)}))
    softmax = {1: error(copies=1), 1000: own.error_over_line(squares)}
    assert own.error_over_line(distances) > 2 * softmax[1000]
    assert own.error_over_line(distances, below=0.2) < own.error_over_line(squares, below=0.2)
    near = [own.PLANE.mixture.share_near(0.05, program["sample"](f).numpy()) for f in (squares, distances)]
    assert near[0] < near[1]
    assert error(points=40) > 0.8
    assert 2 < error(copies=1, steps=60) < 0.7 * softmax[1]
    assert {"copies", "points", "neurons", "steps"} <= set(inspect.signature(program["train"]).parameters)
    gelu = torch.nn.functional.gelu
    assert error(copies=1, activation=gelu) > softmax[1]
    assert error(activation=gelu) < softmax[1000]


def label(x, alpha, means, width):
    v = alpha**2 * width**2 + 1 - alpha**2
    offset = x[:, None] - alpha * means
    q = np.exp(-(offset**2) / (2 * v))
    return ((means + alpha * width**2 / v * offset) * q).sum(1) / q.sum(1)


def step(y, s, e, rate, h, sign=1):
    return y + rate * h * (sign * y / 2 + s) + np.sqrt(rate * h) * e


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("SN-13", label, lambda x, alpha, means, width: x / alpha, "noise for signal"),
        ("SN-15", step, lambda *a: step(*a, sign=-1), "outwards"),
    ],
)
def test_checks_accept_the_right_answer_and_name_a_mistake(name, right, wrong, said):
    assert "right" in repr(attnbook.check(name, right))
    assert said in repr(attnbook.check(name, wrong))
    assert "shape" in repr(attnbook.check(name, lambda *_: np.zeros(3)))
