"""Forward and backward process, mixture, inputs and machines against something independent; what the page says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import red
import torch
from scipy.stats import wasserstein_distance

import attnbook
from attnbook import lab
from attnbook.core.results import read_json, stored_measurements, stored_path
from attnbook.core.rng import stream
from attnbook.softmax_ntk.denoisers import Machine, Task, function_of_class, train_on_copies
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.reverse_sde import particles_back
from attnbook.softmax_ntk.score_matching import NoisySample, Schedule, StoppingRule

own = lab.load_script(Path("chapters/softmax_ntk/diffusion.py"))
MOST_LINES = 45  # of its program, three of them comments
SCHEDULE, ONE, PLANE = own.SCHEDULE, own.ONE, own.PLANE


def at_time(time, points):
    return NoisySample(np.full(len(points), time), points, points)


def sample_of(x, t):
    points = x.double().numpy()
    return NoisySample(t[:, 0].double().numpy(), points, points)


# Forward process, mixture, inputs


def test_signal_solves_its_differential_equation():
    t, h = np.array([0.1, 0.7, 1.4]), 1e-6
    slope = (SCHEDULE.signal(t + h) - SCHEDULE.signal(t - h)) / (2 * h)
    np.testing.assert_allclose(slope, -SCHEDULE.rate(t) * SCHEDULE.signal(t) / 2, rtol=1e-8)


def test_noisy_points_are_distributed_like_paths_of_the_forward_process_made_of_small_steps():
    rng = stream(0, "noisy points")
    x, h = np.full((20_000, 1), 0.8), 0.002
    for step in range(300):
        growth = h * SCHEDULE.rate((step + 0.5) * h)
        x = x * (1 - growth / 2) + np.sqrt(growth) * rng.standard_normal(x.shape)
    at_once = Schedule(first=0.6, last=0.6001).noised(np.full((20_000, 1), 0.8), rng=rng)
    for found in (x, at_once.points):
        assert abs(found.mean() - 0.8 * SCHEDULE.signal(0.6)) < 0.025
        assert abs(found.var() / SCHEDULE.noise(0.6) - 1) < 0.04


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ONE.truth(at_time(0.049, np.zeros((1, 1)))), r"times: expected times from 0\.05 to 1\.5"),
        (lambda: Schedule(base=-0.1), "base, slope"),
        (lambda: Mixture(((0.0,), (0.0, 1.0)), 0.1), "means"),
        (lambda: PLANE.quantiles(0.05, 10), "dimension: expected 1, got 2"),
        (lambda: PLANE.denoiser(np.array([0.3]), np.zeros((1, 1))), "points"),
        (lambda: StoppingRule(10).stop(np.zeros(3)), "losses: expected 7"),
        (lambda: made_by(lambda t, x: x[:, 0]), r"shape \(5, 1\)"),
    ],
)
def test_impossible_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_score_of_the_denoiser_is_the_gradient_of_the_log_density():
    """By automatic differentiation of the density of a mixture of normals."""
    drawn = PLANE.noisy(11, stream(1, "score"))
    x = torch.tensor(drawn.points, requires_grad=True)
    a, b = (torch.tensor(part(drawn.times)) for part in (SCHEDULE.signal, SCHEDULE.noise))
    gaps = x[:, None] - a[:, None, None] * torch.tensor(np.array(PLANE.means))
    density = torch.logsumexp(-(gaps**2).sum(2) / (2 * (a**2 * PLANE.width**2 + b))[:, None], 1)
    density.sum().backward()
    truth = PLANE.truth(drawn).T
    np.testing.assert_allclose(SCHEDULE.score(truth, drawn.times, drawn.points), x.grad, atol=1e-9)
    one = Task(((0.0, 0.0),), 0.4)
    np.testing.assert_allclose(one.line(drawn), one.truth(drawn))  # the best line is the truth of one mode at zero


def test_true_labels_average_clean_points():
    rng = stream(0, "labels")
    clean = ONE.draw(400_000, rng=rng)
    drawn = Schedule(first=0.4, last=0.4001).noised(clean, rng=rng)
    for centre in (-0.5, 0.1, 0.9):
        near = np.abs(drawn.points[:, 0] - centre) < 0.02
        assert abs(clean[near].mean() - ONE.truth(at_time(0.4, np.array([[centre]])))[0, 0]) < 0.02


def test_inputs_are_short_and_the_clip_is_radial():
    x, t = np.array([[30.0, 40.0], [0.3, -0.4]]), np.array([1.5, 0.1])
    inputs = PLANE.inputs(NoisySample(t, x, x), torch.zeros(1).double())[0].numpy()
    clock = 0.42 * (0.2 / 1.5 - 1)  # which runs from -0.42 to 0.42
    np.testing.assert_allclose(inputs, [[0.48, 0.64, 0.42, 0.42], [0.075, -0.1, clock, 0.42]])
    assert np.linalg.norm(inputs, axis=1).max() < 1


def test_quantiles_are_those_of_a_large_sample_and_modes_are_known_by_hand():
    rng = stream(0, "quantiles")
    x = Schedule(first=0.05, last=0.0501).noised(ONE.draw(100_000, rng=rng), rng=rng).points
    assert wasserstein_distance(x[:, 0], ONE.quantiles(0.05, 1000)) < 0.01
    centres, radius = ONE.modes(0.3)
    np.testing.assert_allclose(centres[:, 0], SCHEDULE.signal(0.3) * np.array([-0.6, 0.6]))
    points = centres[1, 0] + radius * np.array([[0.99], [1.01]])
    assert ONE.share_near(0.3, points) == 0.5
    assert (radius / 2) ** 2 == pytest.approx(SCHEDULE.signal(0.3) ** 2 * 0.15**2 + SCHEDULE.noise(0.3))


def test_held_out_labels_stop_at_the_best_step_within_patience_and_budget():
    losses = np.array([5.0, 3.0, 4.0, 3.5, 2.0, 9.0, 9.0])  # at steps 1, 2, 3, 4, 6, 7 and 10
    stops = [StoppingRule(10, patience=p).stop(losses) for p in (1.5, 2.0, 2.9, 3.0)]
    assert stops == [1, 2, 2, 6]
    assert [StoppingRule(10, budget).stop(losses) for budget in (1, 5, 6)] == [1, 2, 6]


# Backward process


def made_by(denoiser, count=5, **options):
    *_, (_, last) = particles_back(denoiser, count, dimension=1, rng=stream(1, "sde"), schedule=SCHEDULE, **options)
    return last


def test_true_score_leads_back_and_wrong_ones_do_not():
    """Against the distribution at the first time; a score that knows nothing, too weak or shifted must be seen."""
    exact, ideal = ONE.at_time(ONE.truth), ONE.quantiles(0.05, 1500)
    wrong = (lambda t, x: 0 * x, lambda t, x: 0.5 * exact(t, x), lambda t, x: exact(t, x) + 0.2)
    gaps = [wasserstein_distance(made_by(one, 1500)[:, 0], ideal) for one in (exact, *wrong)]
    assert gaps[0] < 0.06
    assert (np.array(gaps[1:]) > (0.3, 0.2, 0.1)).all()


def test_times_fall_and_are_finest_at_the_end_and_lost_particles_are_named():
    way = dict(particles_back(lambda _, x: x, 5, dimension=1, rng=stream(4), schedule=SCHEDULE, n_steps=9))
    times = np.array(list(way))
    np.testing.assert_allclose(times[[0, -1]], [1.5, 0.05])
    assert (np.diff(np.diff(times)) > 0).all()
    with pytest.raises(FloatingPointError, match=r"time 1\.5"):
        made_by(lambda _, x: x * np.inf)


# Networks and machines


START, DRAWN = PLANE.start(128, 3.0, 5), PLANE.noisy(13, stream(5, "small"))


@pytest.mark.parametrize("task", [PLANE, ONE])
def test_a_machine_is_descent_on_the_linearised_network(task):
    start, drawn = task.start(128, 3.0, 5), task.noisy(13, stream(5, "small"))
    machine = Machine(task, start, drawn)
    gram = ntk_gram(start, machine.inputs)[0].numpy().reshape(task.dimension, 13, -1, 13)
    found, step = np.zeros_like(drawn.clean.T), 1 / np.linalg.eigvalsh(machine.kernel.numpy())[-1]
    for _ in range(7):
        found = found - step * np.einsum("aibj,bj->ai", gram, found - drawn.clean.T)
    after = machine.after([7], machine.labels)
    np.testing.assert_allclose(machine.predict(after, drawn)[0], found, atol=1e-9)
    assert machine.losses(after, drawn, 0 * found)[0] == pytest.approx((found**2).sum(0).mean())
    gaps = [np.abs(task.answers(machine.network(steps), drawn) - found).max() for steps in (7, 8)]
    assert 5 * gaps[0] < gaps[1]  # the network follows, and a wrong number of steps would show


def test_four_times_the_terms_bound_the_error_and_each_term_is_the_one_it_is_called():
    machine, test = Machine(PLANE, START, DRAWN), PLANE.noisy(31, stream(6, "test"))
    member = function_of_class(Machine(PLANE, START, PLANE.noisy(41, stream(6, "class"))))
    network = PLANE.answers(machine.network(5), test)
    found = own.four_terms(machine, test, network, member, 5)
    assert 4 * sum(found) >= own.mean_square(network - PLANE.truth(test))
    assert found[3] == own.mean_square(member(test) - PLANE.truth(test))
    exact = own.four_terms(machine, test, network, PLANE.truth, 5)  # with the truth in the class
    np.testing.assert_allclose([exact[1], exact[3]], 0, atol=1e-20)


def test_the_function_of_the_class_solves_the_ridge_problem():
    kernel = ntk_gram(START, PLANE.inputs(DRAWN, START.signs))[0].numpy()
    coefficients = np.linalg.solve(kernel + 0.1 * np.eye(26), PLANE.truth(DRAWN).ravel())
    found = function_of_class(Machine(PLANE, START, DRAWN), 0.1)(DRAWN)
    np.testing.assert_allclose(found.ravel(), kernel @ coefficients, rtol=1e-8)


@pytest.mark.parametrize("copies", [1, 3])
def test_training_on_copies_is_adam_on_the_loss_of_each_step(copies):
    """Against autograd and torch's own optimiser, with the noise of each step drawn here."""
    start, clean = PLANE.start(14, 3.0, 2), PLANE.draw(7, rng=stream(2, "clean"))
    at = PLANE.noisy(11, stream(2, "test"))
    options = {"steps": 5, "step_size": 0.01, "seed": 2, "errors": {"error": (at, at.clean.T)}}
    found, history = train_on_copies(PLANE, start, clean, copies, **options)
    weights = start.first_layer[0].clone().requires_grad_()
    adam = torch.optim.Adam([weights], lr=0.01)
    for step in range(5):
        noisy = SCHEDULE.noised(clean, rng=stream(2, "noise", step % copies))
        answers = 14 * torch.softmax(PLANE.inputs(noisy, weights)[0] @ weights, 1) @ start.signs[0].T
        adam.param_groups[0]["lr"] = 0.01 * (1 - step / 5)
        adam.zero_grad()
        ((answers - torch.from_numpy(clean)) ** 2).sum().div(2).backward()
        adam.step()
    torch.testing.assert_close(found.first_layer[0], weights.detach(), rtol=1e-9, atol=1e-9)
    assert history.records["error"][-1, 0] == pytest.approx(own.mean_square(PLANE.answers(found, at) - at.clean.T))


# The chapter's experiments


RED = {
    own.fresh_noise: {"SN-6.FRESH": red.scaled("stopped_error", 2)},
    own.forward_and_back: {
        "SN-6.DSM": red.scaled("label_noise", 1.1),
        "SN-6.SDE": red.scaled("gap", 3),
        "SN-A6.1": red.scaled("clipped", 5),
    },
    own.score_learning: {
        "SN-6.FIT": red.scaled("stopped_error", 3),
        "SN-6.ES": red.scaled("train_noise", 0.5),
        "SN-6.Z": red.scaled("terms", 0.2),
    },
    own.score_sizes: {
        "SN-A6.5": lambda d: d.assign(class_stopped_error=1 / d.class_stopped_error),
        "SN-6.N-line": red.scaled("stopped_error", 2),
    },
}


@pytest.mark.parametrize("made", RED)
def test_every_claim_of_the_chapter_can_be_turned_red_and_is_measured_as_stored(made):
    data = made.stored()
    red.assert_every_claim_turns(made.measure, data, RED[made])
    assert {claim: made.measure(data)[claim] for claim in RED[made]} == stored_measurements(made.id, "book")


def test_the_constant_found_for_the_true_labels_is_that_of_the_closed_form():
    """In closed form alpha / beta times the variance of the label, which is largest between the modes."""
    t = np.linspace(0.05, 1.5, 2001)
    a, b = SCHEDULE.signal(t), SCHEDULE.noise(t)
    v = a**2 * 0.15**2 + b
    slopes = a / b * (0.15**2 * b / v + (0.6 * b / v) ** 2)
    assert own.forward_and_back.stored().lipschitz.values == pytest.approx(slopes.max(), rel=1e-3)
    assert t[slopes.argmax()] == pytest.approx(0.078, abs=5e-4)


def test_error_over_the_line_knows_line_truth_and_times():
    def over(answer, **options):
        return own.error_over_line(lambda x, t: torch.as_tensor(answer(sample_of(x, t)).T), **options)

    assert over(PLANE.line) == pytest.approx(1, rel=1e-4)
    assert over(lambda at: np.where(at.times < 0.2, PLANE.truth(at), 9), below=0.2) < 1e-8


def test_numbers_of_the_page_are_those_of_the_stored_runs():
    fresh, learning = own.fresh_noise.stored(), own.score_learning.stored()
    once = (fresh.error / fresh.line_error).isel(copies=0, step=-1)
    assert once.median() > 10  # "more than ten times"
    again = read_json(stored_path(own.fresh_noise.id, "replications"), own.fresh_noise.id)["SN-6.FRESH"]
    assert min(one["values"]["once_over_line"] for one in again) > 5  # "more than five times"
    assert np.median([one["values"]["fresh_over_line"] for one in again]) == pytest.approx(0.45, abs=0.05)  # "half"
    plane = learning.sel(task="plane")
    assert 2.5 < (plane.error.sel(step=plane.stopped) / plane.line_error).median() < 3.5  # "about three times"
    assert (learning.terms[:, 2] > 1e10 * learning.terms[:, 0]).all()  # "more than ten powers of ten"


# The program that the page shows


@pytest.fixture(scope="module")
def page(program, cells):
    """With the sampler, which another cell defines."""
    exec(next(cell for cell in cells if "def sample(" in cell), program)
    return program


def test_the_program_of_the_page_has_data_noise_and_network_of_the_experiment(page):
    g = torch.Generator().manual_seed(1)
    np.testing.assert_allclose(page["clean_points"](20_000, g).var(0), PLANE.second_moment, rtol=0.05)
    noisy, times = (part[:, 0].double().numpy() for part in page["noised"](torch.zeros(20_000, 2), g))
    assert np.mean(noisy**2 / SCHEDULE.noise(times)) == pytest.approx(1, rel=0.05)
    x, t = torch.tensor([[0.3, -0.1], [5.0, 1.0], [-1.0, 2.0]]), torch.tensor([[0.05], [0.4], [1.5]])
    start = PLANE.start(14, 3.0, 2, dtype=torch.float32)
    away = replace(start, first_layer=start.first_layer + torch.arange(14) / 10)
    got = page["network"](away.first_layer[0], away.signs[0].T, x, t)
    np.testing.assert_allclose(got, PLANE.answers(away, sample_of(x, t)).T, rtol=1e-4, atol=1e-4)


def test_the_sampler_of_the_page_leads_back_with_the_true_score(page):
    def near(answer):
        drawn = page["sample"](lambda x, t: torch.as_tensor(answer(sample_of(x, t)).T).float(), n=400)
        return PLANE.share_near(0.05, drawn.double().numpy())

    assert near(PLANE.truth) > 0.8 > 0.5 > near(PLANE.line)


@pytest.mark.slow
def test_what_the_page_says_of_changes_holds(page):
    """The rows of "Change it" and of what breaks it, on the seed of the page."""

    def only_late(f, x0, t):
        return (t < 0.4) * page["squares"](f, x0, t)

    def error(**change):
        return own.error_over_line(page["train"](**change))

    gelu = torch.nn.functional.gelu
    squares, late = (page["train"](**one) for one in ({}, {"loss": only_late}))
    once, fresh = error(copies=1), own.error_over_line(squares)
    assert error(points=40) > 0.8
    assert 2 < error(copies=1, steps=60) < 0.7 * once
    assert error(copies=1, activation=gelu) > once
    assert error(activation=gelu) < fresh
    assert own.error_over_line(late) > 100
    assert own.error_over_line(late, below=0.2) < own.error_over_line(squares, below=0.2)
    near = [PLANE.share_near(0.05, page["sample"](f).numpy()) for f in (squares, late)]
    assert abs(near[0] - near[1]) < 0.1
    samples = page["sample"](page["train"](loss=only_late, seed=1)).numpy()
    modes = np.array([[0, 0.6], [-0.52, -0.3], [0.52, -0.3]])
    first = np.linalg.norm(samples[:, None] - modes, axis=2).argmin(1) == 0
    assert first.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("SN-13", lambda x, alpha, means, width: x / alpha, "noise for signal"),
        ("SN-15", lambda y, s, e, g, h: y + g * h * (s - y / 2) + np.sqrt(g * h) * e, "outwards"),
    ],
)
def test_checks_name_a_mistake(name, wrong, said):
    assert said in repr(attnbook.check(name, wrong))
