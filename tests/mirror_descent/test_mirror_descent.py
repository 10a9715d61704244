"""The chapter on the optimiser's geometry: every claim can turn, wrong models are noticed, measures by hand."""

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import xarray as xr

from attnbook import ledger
from attnbook.core.experiment import share_of_seeds
from attnbook.core.figures import BACKGROUND
from attnbook.mirror_descent import mirror, mirror_steps, optimizer
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.cone_probes import second_choice
from attnbook.mirror_descent.data import draw_problems, plane_toy
from attnbook.mirror_descent.looks import LOOKS
from attnbook.mirror_descent.mirror_descent import experiments as own
from attnbook.mirror_descent.mirror_descent import figures, lemmas

KINDS = {kind.id: kind for kind in (own.MainTheorem, own.Direction, own.Trajectories, own.Inequalities)}
LEMMAS = own.Inequalities.at("smoke", pairs=300, scalars=1000)


@pytest.fixture(scope="module")
def stored():
    return {name: kind.load_stored("book") for name, kind in KINDS.items()}


def times(name, factor, **where):
    """Scale part of one array."""

    def changed(data):
        array = data[name].copy(deep=True)
        array.loc[where] = factor * array.loc[where]
        return data.assign({name: array})

    return changed


def turned_around(name, dim):
    return lambda data: data.assign(
        {name: data[name].isel({dim: slice(None, None, -1)}).assign_coords({dim: data[dim]})}
    )


RED = {
    "mirror_descent.main_theorem": {
        "MD-theorem": times("kept", 0, choice="other", p=2.0),
        "MD-equal-norm": times("free_divergence", 1.2, choice="best", p=3.0),
    },
    "mirror_descent.direction": {
        "MD-dir": times("divergence", 1000, p=3.0),
        "MD-cross": turned_around("cross", "p"),
        "MD-cross-nearest": times("cosine", 0.9, p=1.25, target=1.25),
        "MD-sparse": turned_around("dimension", "p"),
        "MD-local": times("local", 0, p=1.75),
        "MD-memory": turned_around("cosine", "p"),
    },
    "mirror_descent.trajectories": {"MD-2d": turned_around("path", "p")},
    "mirror_descent.inequalities": {
        "MD-L12": times("norm_slack", -1e9, end="low"),
        "MD-L13": times("ratio", 0.9, form="lemma", p=2.0),
        "MD-L13+": times("ratio", 1.02, form="sharp", p=4.0),
        "MD-L14": times("sides", 0.99, lemma=14, end="high"),
        "MD-L15": times("sides", 0.99, lemma=15, p=4.0),
        "MD-L26": times("identity", 1e4),
    },
}
PARTS = {
    "mirror_descent.main_theorem": [
        ("MD-theorem", turned_around("divergence", "step")),
        ("MD-theorem", turned_around("norm", "step")),
        ("MD-theorem", times("rise", -1)),
        ("MD-theorem", times("kept", 0, choice="best", p=1.5)),
    ],
    "mirror_descent.direction": [
        ("MD-dir", times("cosine", 0.98, p=1.75)),
        ("MD-cross-nearest", times("cross", 100, p=1.5, target=1.5)),
        ("MD-cross-nearest", times("cross", 0.01, p=1.1, target=1.1)),
        ("MD-sparse", times("dimension", 0.1, p=3.0, of="solution for the best")),
        ("MD-sparse", turned_around("share", "p")),
        ("MD-local", lambda d: d.assign(best=d.local)),
    ],
    "mirror_descent.trajectories": [
        ("MD-2d", turned_around("path", "kind")),
        ("MD-2d", turned_around("path", "weight")),
    ],
    "mirror_descent.inequalities": [
        ("MD-L12", lambda d: d.assign(norm_slack=d.norm_slack + 1e-6)),
        ("MD-L13", times("ratio", 0.1, form="lemma", p=3.0)),
        ("MD-L13+", times("ratio", 0.99, form="sharp", p=1.25)),
    ],
}  # other values of the same rules


@pytest.mark.parametrize("name", KINDS)
def test_every_measured_claim_of_the_chapter_can_be_turned_red(name, stored):
    red.assert_every_claim_turns(KINDS[name]().measurements, stored[name], RED[name], PARTS[name])


def test_shares_of_seeds_and_their_intervals_by_hand():
    """Wilson's interval of 8 of 10 is (0.490, 0.943); a seed without a value does not count."""
    passed = xr.DataArray([1.0] * 8 + [0.0] * 2 + [np.nan], dims="seed")
    assert float(share_of_seeds(passed)) == 0.8
    np.testing.assert_allclose([share_of_seeds(passed, side) for side in (-1, 1)], [0.4902, 0.9433], atol=1e-4)


def test_starts_of_the_theorem_lie_where_they_should():
    """At the first record: the divergence and the norm asked for."""
    data = own.MainTheorem.at("smoke", steps=1, free_steps=1).run(device="cpu")
    first = data.isel(step=0).sel(choice="best")
    np.testing.assert_allclose(first.divergence, 0.02, rtol=1e-6)
    np.testing.assert_allclose(first.norm, 10.0, rtol=1e-9)


def test_second_choices_are_locally_optimal_and_not_the_best():
    problems = draw_problems(range(6))
    for largest in (False, True):
        selected, slack = second_choice(problems, 2.0, largest=largest)
        exists, svm = ~np.isnan(slack), attention_svm(problems.tokens, problems.queries, selected, 2.0)
        assert exists.any()
        assert ((selected != problems.best_tokens).sum(axis=1) == exists).all()
        assert locally_optimal(problems.token_scores, selected, svm.support).all()
        assert (slack[exists] > 0).all()
    first = second_choice(problems, 2.0)[1][exists]
    assert (slack[exists] >= first).all()
    assert (slack[exists] > first).any()


def test_equal_norm_is_read_between_records():
    """Divergence 1 / norm squared on both kinds of steps: the ratio is one, between records too."""
    norm, free_norm = xr.DataArray([10.0, 14.0], dims="step"), xr.DataArray([10.0, 12.0, 20.0], dims="free_step")
    data = xr.Dataset({"norm": norm, "free_norm": free_norm, "divergence": norm**-2, "free_divergence": free_norm**-2})
    data = data.assign(kept=1.0, free_kept=1.0)
    assert float(own.MainTheorem().at_equal_norm(data)) == pytest.approx(1.0)
    assert np.isnan(own.MainTheorem().at_equal_norm(data.assign(free_kept=0.0)))


def test_cosines_are_those_of_the_diagonal():
    cosine = xr.DataArray([[0.5, 0.9], [0.7, 0.6]], {"p": [2.0, 3.0], "target": [2.0, 3.0]})
    assert own.own_cosine(xr.Dataset({"cosine": cosine})).values.tolist() == [0.5, 0.6]


def test_the_toys_rays_are_the_closed_form_and_what_the_solver_finds():
    """Angles by hand from the constraint (1.2, 0.5); a quarter turn from the ray is 90 degrees, its opposite 180."""
    ps, toy = np.array([3.0, 2.0, 1.75, 1.5, 1.25]), plane_toy()
    rays = own.toy_rays(ps)
    np.testing.assert_allclose(np.degrees(np.arctan2(*rays.T[::-1])), [32.84, 22.62, 17.29, 9.85, 1.73], atol=6e-3)
    solved = [attention_svm(toy.tokens, toy.queries, toy.best_tokens, p).weight[0, :, 0] for p in ps]
    np.testing.assert_allclose(solved, rays, atol=1e-6)
    path = np.stack([rays[0], [-rays[0, 1], rays[0, 0]], -rays[0]])
    data = xr.Dataset({"path": (("p", "step", "weight"), path[None])}, {"p": [3.0], "weight": [1, 2]})
    np.testing.assert_allclose(own.angles_to_ray(data).values[0], [0, 90, 180], atol=1e-9)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0])
def test_with_one_constraint_and_a_zero_start_the_direction_is_exact_at_every_step(p):
    one = draw_problems([0, 1], n_samples=1, n_tokens=2)
    svm = attention_svm(one.tokens, one.queries, one.best_tokens, p)
    history = descend(one, np.full(2, p), steps=30, step_size=0.1, record_at=range(1, 31))
    assert mirror.direction_divergence(svm.weight, history.records["key_query"], p).max() < 1e-12


@pytest.mark.parametrize(
    ("name", "claim"),
    [("norm_bounds", "MD-L12"), ("divergence_bound", "MD-L13"), ("divergence_bound", "MD-L13+"),
     ("power_bounds", "MD-L14"), ("slope_bounds", "MD-L15"), ("three_point_error", "MD-L26")],
)  # fmt: skip
def test_a_wrong_inequality_turns_its_claim_red(name, claim, monkeypatch):
    honest = getattr(lemmas.inequalities, name)

    def wrong(*arguments, **options):
        found = honest(*arguments, **options)
        return found[::-1] if isinstance(found, tuple) else 1.02 * found + 1e-9

    outcomes = [red.outcomes(LEMMAS.measurements, LEMMAS.run(device="cpu"))[claim]]
    monkeypatch.setattr(lemmas.inequalities, name, wrong)
    outcomes.append(red.outcomes(LEMMAS.measurements, LEMMAS.run(device="cpu"))[claim])
    assert outcomes[0] in ("reproduced", "consistent with the bound", "identity")
    assert outcomes[1] == "not reproduced"


def gradient_descent_for_all(monkeypatch):
    honest = optimizer.MirrorRule.options
    monkeypatch.setattr(optimizer.MirrorRule, "options", lambda self, n: [o | {"p": 2.0} for o in honest(self, n)])


def wrong_way_back(monkeypatch):
    """The inverse mirror map with the exponent of the map: p - 1 in place of 1 / (p - 1)."""
    monkeypatch.setattr(mirror_steps, "image", lambda theta, p, _=None: theta.abs().pow(p - 1).copysign(theta))


@pytest.mark.slow
def test_a_wrong_optimiser_turns_the_claims_on_directions_red(monkeypatch):
    runs, plane = own.Direction(seeds=tuple(range(8)), steps=1000), own.Trajectories(steps=1000)
    claims = {"MD-cross", "MD-sparse", "MD-2d"}

    def failed():
        found = [red.outcomes(e.measurements, e.run(device="cpu")) for e in (runs, plane)]
        return {claim for part in found for claim, outcome in part.items() if outcome == "not reproduced"}

    assert not claims & failed()
    for mutate in (gradient_descent_for_all, wrong_way_back):
        with monkeypatch.context() as patch:
            mutate(patch)
            assert claims <= failed(), mutate


def test_pictures_and_tables_draw(stored):
    drawn = [
        figures.paths(stored["mirror_descent.trajectories"]),
        figures.theorem(stored["mirror_descent.main_theorem"]),
        figures.solution_frame(1.5),
    ]
    assert all(figure.axes for figure in drawn)
    for figure in drawn:
        plt.close(figure)
    assert "9.85 degrees" in figures.solution_text(1.5)
    assert [row[0] for row in figures.by_exponent(stored["mirror_descent.direction"]).rows][-1] == "3"


def test_an_exponent_of_the_readers_own_trains_and_a_line_says_which_claims_need_others():
    for kind, measured in ((own.Direction, False), (own.Inequalities, True)):
        data = kind.at("smoke", ps=(1.3,)).run(device="cpu")
        *claims, said = repr(ledger.check(data)).splitlines()
        assert len(claims) == 6
        assert all(line.endswith("your run, not judged" if measured else "your run, not measured") for line in claims)
        assert said.startswith("your run: size smoke, ps 1.3 (")
        assert said.endswith("not the run by which the claims are judged" if measured else "in index 'p'")


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("ps", [(2.0, 1.5), (1.0, 2.0, 3.0), ()])
def test_impossible_exponents_are_refused_by_name(kind, ps):
    with pytest.raises(ValueError, match="ps: "):
        kind(ps=ps)


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
