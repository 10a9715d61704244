"""The experiments of this paper: wrong models turn claims red; figures and tables draw from what was measured."""

import dataclasses
import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnbook import ledger
from attnbook.core.figures import BACKGROUND
from attnbook.mirror_descent import attention as models
from attnbook.mirror_descent import mirror, mirror_steps, optimizer
from attnbook.mirror_descent.experiments import direction, geometry, inequalities, trajectories
from attnbook.mirror_descent.figures import mirror_descent as figures
from attnbook.mirror_descent.figures.looks import LOOKS
from attnbook.mirror_descent.tables import mirror_descent as tables

PLANE = dataclasses.replace(trajectories.Settings.book(), steps=600, records=4, seeds=(0, 1), exact_steps=20)
RUNS = dataclasses.replace(direction.Settings.book(), steps=700, read_at=700, records=4, seeds=(0, 2))


@pytest.fixture(scope="module")
def smoke():
    modules = (direction, geometry, inequalities, trajectories)
    return {module: module.run(module.Settings.smoke(), device="cpu") for module in modules}


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


def failed(result):
    return {claim for claim, outcome in outcomes(result).items() if outcome == "not reproduced"}


def wrong_way_back(monkeypatch):
    """The inverse mirror map with the exponent of the map: p - 1 in place of 1 / (p - 1)."""
    monkeypatch.setattr(mirror_steps, "image", lambda theta, p, _=None: theta.abs().pow(p - 1).copysign(theta))


def wrong_direction(monkeypatch):
    """The gradient without the softmax's derivative of the top token: its coefficient is left out."""
    honest = models._scaled_gradient

    def gradient(key_query, batch):
        top = (batch.queries @ key_query.mT).unsqueeze(-2).mul(batch.tokens).sum(-1).argmax(-1, keepdim=True)
        tokens = batch.tokens.scatter(2, top.unsqueeze(-1).expand(-1, -1, -1, batch.tokens.shape[-1]), 0.0)
        losses, _, log_scale = honest(key_query, batch)
        _, gradients, _ = honest(key_query, batch._replace(tokens=tokens))
        return losses, gradients, log_scale

    monkeypatch.setattr(models, "_scaled_gradient", gradient)


@pytest.mark.slow
@pytest.mark.parametrize("mutate", [wrong_way_back, wrong_direction])
def test_a_wrong_model_turns_the_claims_of_the_plane_red(mutate, monkeypatch):
    """At this short length p = 3 passes with honest code."""
    honest = failed(trajectories.run(PLANE, device="cpu"))
    mutate(monkeypatch)
    mutated = failed(trajectories.run(PLANE, device="cpu"))
    assert "MD-exact" not in honest
    assert "MD-2d-p3" not in honest
    assert {"MD-exact", "MD-2d-p3"} <= mutated


@pytest.mark.slow
def test_gradient_descent_for_all_p_turns_the_claims_on_directions_red(monkeypatch):
    """An optimiser that ignores p: directions, cross table and sparsity must notice."""
    honest = failed(direction.run(RUNS, device="cpu"))
    original = optimizer.MirrorRule.options
    monkeypatch.setattr(
        optimizer.MirrorRule, "options", lambda self, n: [one | {"p": 2.0} for one in original(self, n)]
    )
    mutated = failed(direction.run(RUNS, device="cpu"))
    red = {"MD-dir-p3", "MD-cross-p3", "MD-sparse", "MD-sparse-share"}
    assert not red & honest
    assert red <= mutated


@pytest.mark.parametrize(
    ("name", "red"),
    [
        ("divergence_bound", {"MD-L13a", "MD-L13a+", "MD-L13b+"}),
        ("norm_bounds", {"MD-L12-above2", "MD-L12-below2"}),
        ("power_bounds", {"MD-L14"}),
        ("slope_bounds", {"MD-L15"}),
        ("three_point_error", {"MD-L26"}),
    ],
)
def test_a_wrong_inequality_turns_its_claims_red(name, red, monkeypatch):
    settings = dataclasses.replace(inequalities.Settings.book(), pairs=300, scalars=1000, steps=3, seeds=(0, 1))
    honest = getattr(inequalities.inequalities, name)

    def wrong(*arguments, **options):
        found = honest(*arguments, **options)
        return found[::-1] if isinstance(found, tuple) else 1.01 * found + 1e-9

    monkeypatch.setattr(inequalities.inequalities, name, wrong)
    assert red <= failed(inequalities.run(settings, device="cpu"))


def test_a_constant_of_lemma_13_that_is_slightly_too_large_is_noticed_at_every_exponent(monkeypatch):
    settings = dataclasses.replace(inequalities.Settings.book(), pairs=300, scalars=10, steps=1, seeds=(0,))
    honest = inequalities.inequalities.best_constant
    monkeypatch.setattr(inequalities.inequalities, "best_constant", lambda p: 1.02 * honest(p))
    result = inequalities.run(settings, device="cpu")
    above = np.array(settings.ps) > 2
    assert (result.ratios[above, 1] < 0.99).all()
    assert "MD-L13b+" in failed(result)


def test_tokens_settle_when_they_equal_the_last_ones_for_good(smoke):
    """Equal, different, equal, equal: settled at the third record."""
    result = smoke[direction]
    unchanged = np.ones_like(result.unchanged)
    unchanged[0, 0, 0, 1] = 0.0
    found = dataclasses.replace(result, unchanged=unchanged).settled_at()
    assert found[0, 0, 0] == result.steps[2]
    assert found[0, 1, 0] == result.steps[0]


def test_the_nearest_run_and_the_nearest_target_are_counted_by_hand(smoke):
    """Rows of the cross table are runs, columns are targets."""
    result = smoke[direction]
    size = len(result.settings.ps)
    far = np.ones_like(result.cross) - np.eye(size)
    far[0, 0, 3, 0] = -1.0  # the run of the fourth exponent is closer to the first target than its own run
    found = dataclasses.replace(result, cross=far, cross_cosine=1 - far)
    assert found.own_is_nearest()[0].tolist() == [0.0] + [1.0] * (size - 1)
    assert found.own_has_largest_cosine()[0].tolist() == [1.0, 1.0, 1.0, 0.0, *[1.0] * (size - 4)]


@pytest.mark.parametrize("other", [1.5, 1.75, 2.0])
def test_a_run_with_another_exponent_does_not_pass_for_the_one_at_1_25(other):
    """On the stored run the threshold alone lets some of them pass."""
    result = direction.Direction.load_stored("paper")
    own, taken = result.of(1.25), result.of(other)
    cross, divergence = result.cross.copy(), result.divergence.copy()
    cross[:, :, own] = cross[:, :, taken]
    divergence[:, :, own] = 0.01
    swapped = dataclasses.replace(result, cross=cross, divergence=divergence)
    honest, wrong = (ledger.check(r, only=["MD-dir-p1.25"], scale="paper").verdicts[0] for r in (result, swapped))
    assert (honest.outcome, wrong.outcome) == ("reproduced", "not reproduced")


def test_a_transposed_norm_turns_the_claims_on_solutions_red(monkeypatch):
    """Solving with the conjugate exponent: solutions get denser, not sparser, as p falls."""
    honest = geometry.attention_svm
    monkeypatch.setattr(geometry, "attention_svm", lambda t, q, s, p: honest(t, q, s, p / (p - 1)))
    settings = dataclasses.replace(geometry.Settings.book(), ps=(1.25, 1.5, 2.0, 3.0), seeds=(0, 1))
    assert failed(geometry.run(settings, device="cpu")) == {"MD-2d-target", "MD-sparse-svm"}


def test_directions_are_compared_with_the_solution_of_the_runs_own_tokens(smoke):
    """The diagonal of the cross table is the last record of the divergence."""
    result = smoke[direction]
    diagonal = np.einsum("qsii->qsi", result.cross)
    np.testing.assert_allclose(diagonal, result.divergence[..., -1], atol=1e-12)
    assert (np.einsum("qsii->qsi", result.same_tokens) == 1).all()


def test_seeds_trained_in_chunks_give_the_same_directions():
    whole, parts = (
        direction.run(dataclasses.replace(direction.Settings.smoke(), chunk=chunk), device="cpu") for chunk in (2, 1)
    )
    np.testing.assert_allclose(whole.cross, parts.cross, rtol=1e-7, atol=1e-12)


def test_angles_to_the_ray_by_hand(smoke):
    """A quarter turn from the ray is 90 degrees, its opposite 180."""
    result = smoke[trajectories]
    ray = result.target[:, None, None]
    turned = np.stack([-ray[..., 1], ray[..., 0]], axis=-1)
    path = np.concatenate([ray, turned, -ray], axis=2)
    np.testing.assert_allclose(result.angle_errors(path)[:, 0], [[0.0, 90.0, 180.0]] * len(ray), atol=1e-9)


def test_the_closed_form_angles_are_those_of_the_theory():
    for p, angle in geometry.CLOSED_FORM.items():
        solution = mirror.single_constraint(np.array([[1.2], [0.5]]), p)[:, 0]
        assert np.degrees(np.arctan2(*solution[::-1])) == pytest.approx(angle, abs=0.006)


def test_figures_and_tables_draw_from_a_smoke_result(smoke):
    lemmas = dataclasses.replace(inequalities.Settings.smoke(), ps=(1.25, 2.0, 4.0))
    drawn = [
        figures.paths(smoke[trajectories]),
        figures.two_spaces(smoke[trajectories], 1.25),
        figures.angle_errors(smoke[trajectories]),
        figures.convergence(smoke[direction]),
        figures.cross_heat(smoke[direction]),
        figures.cross_table(smoke[direction]),
        figures.entries(smoke[direction]),
        figures.sparsity(smoke[direction]),
        figures.microscope(inequalities.run(lemmas, device="cpu")),
        figures.explorer_frame(smoke[geometry], 1.5, 3.0),
    ]
    assert all(figure.axes for figure in drawn)
    for figure in drawn:
        plt.close(figure)
    assert "p = 1.5" in tables.explorer_text(smoke[geometry], 1.5, 3.0)
    for table in (tables.tokens(smoke[direction]), tables.nearest(smoke[direction])):
        assert len(table.rows) == len(smoke[direction].settings.ps)
    assert "three programs" in tables.cost(smoke[trajectories], 7).caption


def luminance(color):
    channels = np.array(mpl.colors.to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_every_exponent_can_be_told_apart_without_colour_and_stands_out():
    for one, other in itertools.combinations(LOOKS.values(), 2):
        assert one.marker != other.marker
        assert one.line != other.line
        assert one.label != other.label
    for look in LOOKS.values():
        assert (luminance(BACKGROUND) + 0.05) / (luminance(look.color) + 0.05) >= 4.5


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (direction.Settings, {"ps": (1.5, 2.0)}),
        (direction.Settings, {"read_at": 9999}),
        (direction.Settings, {"seeds": ()}),
        (trajectories.Settings, {"ps": (2.0, 1.5)}),
        (geometry.Settings, {"ps": (1.0, 2.0)}),
        (inequalities.Settings, {"ps": (1.5, 3.0)}),
        (inequalities.Settings, {"shown": 0}),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(settings.book(), **change)


def test_a_device_with_float64_trains_in_it():
    assert optimizer.precision(torch.device("cpu")) == torch.float64
    assert optimizer.precision(torch.device("mps")) == torch.float32
