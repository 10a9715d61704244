"""The chapter on joint training: gradients, right-hand sides, their ratio, the joint law, and what turns claims red."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import red
import torch
import xarray as xr
from scipy.optimize import minimize

from attnbook.core.max_margin import InfeasibleError, max_margin
from attnbook.mirror_descent import joint, joint_directions
from attnbook.mirror_descent import relaxed_svm as relaxed
from attnbook.mirror_descent.attention import Batch
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import draw_problems, plane_joint
from attnbook.mirror_descent.joint import descend_jointly, joint_gradient
from attnbook.mirror_descent.joint_law import NearConflictError, OvertakingTokenError
from attnbook.mirror_descent.joint_training import experiments as own
from attnbook.mirror_descent.joint_training import figures
from attnbook.mirror_descent.joint_training.exercises import CHECKS
from attnbook.mirror_descent.optimizer import MirrorDescent
from attnbook.mirror_descent.relaxed_svm import HeadSVM, head_svm, relaxed_svm, right_hand_sides, self_consistent

SIZES = {"n_samples": 3, "n_tokens": 5, "dimension": 7}
HEAD, MATRIX = np.array([0.0, 1.0]), np.array([4 / 3, 1 / 3])  # limits of the toy, for every exponent
CHOSEN = np.array([[0, 1, 2], [4, 4, 0]])


def loss(parameters, batch):
    """The loss as it reads, for autograd."""
    logits = torch.einsum("mntd,mde,mne->mnt", batch.tokens, parameters["key_query"], batch.queries)
    outputs = torch.einsum("mnt,mntd,md->mn", logits.softmax(-1), batch.tokens, parameters["decoder"])
    return torch.nn.functional.softplus(-batch.labels * outputs).mean(-1)


def random_parameters(members, dimension, size=1.0):
    draw = np.random.default_rng(5)
    return {
        "key_query": torch.tensor(size * draw.standard_normal((members, dimension, dimension))),
        "decoder": torch.tensor(size * draw.standard_normal((members, dimension))),
    }


@pytest.mark.parametrize("size", [0.1, 8.0])
def test_both_gradients_are_those_of_autograd(size):
    batch, parameters = Batch.of(draw_problems([0, 1], **SIZES)), random_parameters(2, 7, size)
    losses, gradients, log_scales = joint_gradient(parameters, batch)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
    expected = loss(leaves, batch)
    expected.sum().backward()
    assert torch.allclose(losses, expected, atol=1e-13)
    for name, leaf in leaves.items():
        scale = log_scales[name].exp().view(-1, *[1] * (leaf.ndim - 1))
        assert torch.allclose(gradients[name] * scale, leaf.grad, rtol=1e-9, atol=1e-14)


def test_gradients_keep_their_direction_where_every_float_would_be_zero():
    far = {name: 900 * tensor for name, tensor in random_parameters(1, 7, 30.0).items()}
    _, gradients, log_scales = joint_gradient(far, Batch.of(draw_problems([0], **SIZES)))
    assert log_scales["key_query"] < -2000
    for gradient in gradients.values():
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 1e-6


def one_step(size=1.0, **options):
    problems, draw = draw_problems([2], **SIZES), np.random.default_rng(3)
    start = (size * draw.standard_normal((1, 7, 7)), size * draw.standard_normal((1, 7)))
    run = descend_jointly(problems, steps=1, step_size=0.1, start=start, record_at=[0, 1], **options)
    at_start = {"key_query": torch.tensor(start[0]), "decoder": torch.tensor(start[1])}
    return run, at_start, *joint_gradient(at_start, Batch.of(problems))[1:]


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_a_common_step_moves_both_blocks_by_the_same_multiple_of_their_gradients(p):
    run, _, gradients, log_scales = one_step(p=np.array([p]), protocol="common")
    eta = np.exp(run.records["log_time"][1])
    for name in joint.BLOCKS:
        before, after = (np.sign(w) * np.abs(w) ** (p - 1) for w in run.records[name])
        plain = gradients[name].numpy() * np.exp(float(log_scales[name][0]))
        assert np.allclose(after, before - eta * plain, atol=1e-12)


def test_separate_steps_are_those_of_the_optimiser_on_each_block():
    run, start, gradients, _ = one_step(2.0, p=np.array([1.5]), head_pace=3.0)
    for name, size in (("key_query", 0.1), ("decoder", 0.3)):
        weight = torch.nn.Parameter(start[name])
        weight.grad = gradients[name]
        MirrorDescent([weight], lr=size, p=1.5, normalized=True, stacked=True).step()
        assert np.allclose(run.records[name][1], weight.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("p", [1.4, 2.0, 3.0])
def test_right_hand_sides_of_max_margin_agree_with_an_independent_solver(p):
    rows, right = np.random.default_rng(1).standard_normal((1, 5, 7)), np.array([[1.0, 0.4, 0.0, 2.0, 0.001]])
    found = max_margin(rows, p, right=right)
    assert (np.einsum("kd,d->k", rows[0], found.weights[0]) >= right[0] - 1e-9).all()
    assert np.isclose((right * found.multipliers).sum(), found.norm[0] ** 2)
    oracle = minimize(
        lambda w: (np.abs(w) ** p).sum(), found.weights[0] + 0.1, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: rows[0] @ w - right[0]}, options={"maxiter": 2000, "ftol": 1e-14},
    )  # fmt: skip
    assert np.isclose(oracle.fun ** (1 / p), found.norm[0], rtol=1e-4)


def test_constraints_that_contradict_a_zero_right_hand_side_are_refuted_with_a_proof():
    rows = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    with pytest.raises(InfeasibleError) as refused:
        max_margin(rows, 2.0, right=np.array([[1.0, 0.0]]))
    assert np.allclose(refused.value.combination @ rows[0], 0)


@pytest.mark.parametrize("p", [1.25, 1.5, 2.0, 4.0])
def test_the_limits_of_the_toy_are_those_known_by_hand(p):
    """Three constraints meet in a corner; at p = 1.5 the interior point method alone gives up."""
    toy, second = plane_joint(), np.ones((1, 3), dtype=int)
    assert np.allclose(head_svm(toy.tokens, toy.labels, second, p).weight, [HEAD], atol=1e-7)
    assert np.allclose(attention_svm(toy.tokens, toy.queries, second, p).weight[0, :, 0], MATRIX)


def test_descent_on_the_toy_goes_to_these_limits_from_a_bad_start():
    toy, ps = plane_joint().repeated(2), np.array([1.75, 3.0])
    start = np.zeros((2, 2, 2)), np.tile([-1.0, 0.0], (2, 1))
    start[0][:, 1, 0] = -1.0
    run = descend_jointly(toy, ps, steps=1500, step_size=0.1, start=start, record_at=[1500])
    for found, target in ((run.records["key_query"][-1][..., 0], MATRIX), (run.records["decoder"][-1], HEAD)):
        assert (found @ target / np.linalg.norm(found, axis=1) / np.linalg.norm(target) > 0.999).all()


def test_equal_right_hand_sides_scale_the_attention_svm():
    one = draw_problems([0, 1], **SIZES)
    plain = attention_svm(one.tokens, one.queries, CHOSEN, 1.75)
    half = relaxed_svm(one.tokens, one.queries, CHOSEN, np.full((2, 3, 4), 0.5), 1.75)
    assert np.allclose(half.weight, plain.weight / 2, atol=1e-8)


def test_negative_right_hand_sides_leave_constraints_out():
    one, right = draw_problems([0], **SIZES), np.ones((1, 3, 4))
    right[0, 1:] = -1
    found = relaxed_svm(one.tokens, one.queries, CHOSEN[:1], right, 2.0)
    alone = attention_svm(one.tokens[:, :1], one.queries[:, :1], CHOSEN[:1, :1], 2.0)
    assert np.allclose(found.weight, alone.weight, atol=1e-9)
    assert found.multipliers[0, 1:].max() == 0
    assert np.isclose(found.multipliers.sum(), found.norm[0] ** 2)


def some_head(margins, others):
    margins = np.asarray(margins)
    blank = np.ones(len(margins))
    return HeadSVM(np.zeros((len(margins), 2)), blank, margins, np.asarray(others), 0 * margins, margins <= 1 + 1e-6)


def test_right_hand_sides_stop_at_zero_where_the_sample_can_still_pull_the_token_back():
    head = some_head([[1.0, 1.5]], [[[0.2, 3.0], [1.2, 1.3]]])
    assert np.allclose(right_hand_sides(head, np.array([1.0])), [[[1, 1], [0.5, 0.5]]])
    # 4 (1.2 - 1) < 1, but 4 (1.3 - 1) > 1.
    assert np.allclose(right_hand_sides(head, np.array([4.0])), [[[1, 1], [0, -1]]])
    assert np.array_equal(right_hand_sides(head, np.array([np.inf])), [[[1, 1], [-np.inf, -np.inf]]])


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_the_self_consistent_ratio_solves_its_equation_and_bisection_finds_no_other(p):
    one, ratio = draw_problems([0, 1], **SIZES), np.array([0.05, 0.9])
    head = some_head([[1.0, 1.2, 2.0]] * 2, np.full((2, 3, 4), 0.5))
    found = self_consistent(one.tokens, one.queries, CHOSEN, head, ratio, p)
    assert np.allclose(ratio * found.norm, found.kappa, rtol=1e-6)
    low, high = np.zeros(2), ratio * attention_svm(one.tokens, one.queries, CHOSEN, p).norm
    for _ in range(30):
        middle = (low + high) / 2
        norm = relaxed_svm(one.tokens, one.queries, CHOSEN, right_hand_sides(head, middle), p).norm
        low, high = np.where(ratio * norm > middle, middle, low), np.where(ratio * norm > middle, high, middle)
    assert np.allclose(found.kappa, low, rtol=1e-6)


def test_with_every_sample_on_the_margin_the_corrected_target_is_the_plain_one():
    one, head = draw_problems([0], **SIZES), some_head([[1.0, 1.0, 1.0]], np.zeros((1, 3, 4)))
    found = self_consistent(one.tokens, one.queries, CHOSEN[:1], head, np.array([7.0]), 1.5)
    assert np.allclose(found.weight, attention_svm(one.tokens, one.queries, CHOSEN[:1], 1.5).weight, atol=1e-8)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_mixing_another_token_in_lowers_the_label_margin_only_on_the_margin(p):
    """The rate of the chapter, against heads solved anew with a little of the first other token mixed in."""
    one, share = draw_problems([0, 3], **SIZES), 1e-5
    head = head_svm(one.tokens, one.labels, CHOSEN, p)
    rate = -head.multipliers * (head.margins - head.other_margins[..., 0]) / head.norm[:, None] ** 3
    other = np.where(CHOSEN == 0, 1, 0)
    for sample in range(3):
        mixed, at = one.tokens.copy(), (np.arange(2), sample)
        mixed[*at, CHOSEN[:, sample]] = (1 - share) * one.tokens[*at, CHOSEN[:, sample]] + share * one.tokens[
            *at, other[:, sample]
        ]
        change = (1 / head_svm(mixed, one.labels, CHOSEN, p).norm - 1 / head.norm) / share
        assert np.allclose(change, rate[:, sample], atol=1e-4 * np.abs(rate).max())


def test_one_step_size_lets_the_matrix_grow_as_the_radial_equations_say():
    """Integrate both equations and compare slopes."""
    for p in (1.5, 2.0, 3.0):
        r = np.geomspace(1, 1e4, 20_001)
        rho = np.empty_like(r)
        rho[0] = 3.0
        for k in range(len(r) - 1):
            rho[k + 1] = rho[k] + (r[k + 1] - r[k]) * r[k] ** (p - 1) * np.exp(-rho[k]) * rho[k] ** (2 - p)
        far = r > 1e3
        slope = np.polyfit(np.log(r[far]), rho[far], 1)[0]
        assert np.isclose(slope, own.common_step_growth(rho[far], p).mean(), rtol=0.03)


# One sample, query (1, 0): the first token is selected, the last has twice its head margin.
KEPT_OFF = np.array([[[1.0, 0.0], [0.0, -1.0], [2.0, -5.0]]])
OVERTAKING = np.array([[[1.0, 0.0], [0.0, -1.0], [2.0, -2.0]]])
LONE = {"queries": np.array([[1.0, 0.0]]), "labels": np.array([1.0]), "head": np.array([3.0, 0.0])}


def test_a_token_with_a_larger_head_margin_does_not_matter_while_it_is_kept_off():
    found = joint_directions(KEPT_OFF, key_query=np.array([[5.0, 0.0], [5.0, 0.0]]), **LONE)
    assert np.allclose(found.key_query.weight[0], [[0.5, 0], [0.5, 0]], atol=1e-8)
    assert np.allclose(found.gaps, [[[1, 2]]], atol=1e-7)
    assert found.head.other_margins[0, 0, 1] == pytest.approx(2)
    assert found.cosine_key_query == pytest.approx(1)


@pytest.mark.parametrize("column", [[5.0, 5.0], [1.0, 9.0]])  # tight in the solution; and too near in the matrix
def test_a_token_with_a_larger_head_margin_that_is_not_kept_off_is_named(column):
    matrix = np.array([[column[0], 0.0], [column[1], 0.0]])
    tokens = OVERTAKING if column[0] == 5 else np.array([[[1.0, 0.0], [0.0, -1.0], [2.0, -5.0], [2.0, -0.15]]])
    last = tokens.shape[1] - 1
    with pytest.raises(OvertakingTokenError, match=f"problem 0, sample 0, token {last}: its head margin, 2") as broken:
        joint_directions(tokens, key_query=matrix, **LONE)
    assert (broken.value.problem, broken.value.sample, broken.value.token) == (0, 0, last)
    found = joint_directions(tokens, key_query=matrix, check=False, **LONE)
    assert found.overtaking[0, 0].tolist() == [False] * (last - 1) + [True]


@pytest.mark.parametrize("nearly", [1e-6, 1e-9])  # the solver gives up; it takes the tokens for a conflict
def test_tokens_nearly_in_conflict_are_named_whatever_is_checked(nearly):
    """One query, two samples: the second asks for the opposite of the first, but for a hair. An easy problem before."""
    hard = np.array([[[2.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [2.0, 1.0 - nearly]]])
    tokens = np.stack([np.array([[[1.0, 1.0], [0.0, 0.0]], [[1.0, -4.0], [0.0, 0.0]]]), hard])
    queries = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    labels, heads = np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([[2.0, 2.0], [1.0, 1.0]])
    matrices = np.array([[[5.0, 0.0], [5.0, -2.0]], [[1.0, 0.0], [2 / nearly, 0.0]]])
    with pytest.raises(NearConflictError, match="problem 1, sample 0, token 1: kept off by") as refused:
        joint_directions(tokens, queries, labels, heads, matrices, check=False)
    assert (refused.value.problem, refused.value.sample, refused.value.token) == (1, 0, 1)


def test_a_stack_of_problems_is_each_of_them_alone():
    one = draw_problems([5, 6], **SIZES)
    run = descend_jointly(one, np.array([2.0, 3.0]), steps=300, step_size=0.1, record_at=[300])
    key_query, head = run.records["key_query"][0], run.records["decoder"][0]
    both = joint_directions(one.tokens, one.queries, one.labels, head, key_query, [2.0, 3.0])
    alone = joint_directions(one.tokens[1], one.queries[1], one.labels[1], head[1], key_query[1], 3.0)
    assert np.allclose(both.key_query.weight[1], alone.key_query.weight[0], atol=1e-8)
    assert both.cosine_key_query.min() > 0.95
    assert np.allclose(both.head_norm[1] / both.relative_norm[1], both.key_query.kappa[1])


def test_bad_input_is_refused_by_name():
    one = draw_problems([0], **SIZES)
    head = head_svm(one.tokens, one.labels, CHOSEN[:1], 2.0)
    step = {"p": np.array([2.0]), "steps": 1, "step_size": 0.1}
    good = {"tokens": KEPT_OFF, "key_query": np.array([[5.0, 0.0], [5.0, 0.0]]), **LONE}
    twice = {"tokens": np.repeat(KEPT_OFF, 2, 0), "queries": np.repeat(LONE["queries"], 2, 0)}
    cases = {
        "protocol": lambda: descend_jointly(one, **step, protocol="both"),
        "start": lambda: descend_jointly(one, **step, start=(np.zeros((1, 7, 7)), np.zeros((1, 5)))),
        "right'": lambda: relaxed_svm(one.tokens, one.queries, CHOSEN[:1], np.ones((1, 3)), 2.0),
        "right": lambda: max_margin(np.ones((1, 2, 3)), 2.0, right=-np.ones((1, 2))),
        "ratio": lambda: self_consistent(one.tokens, one.queries, CHOSEN[:1], head, np.array([-1.0]), 2.0),
        "tokens": lambda: joint_directions(**good | {"tokens": KEPT_OFF[0]}),
        "head": lambda: joint_directions(**good | {"head": np.ones(3)}),
        "key_query: expected finite": lambda: joint_directions(**good | {"key_query": np.full((2, 2), np.nan)}),
        "labels: expected 1 and -1": lambda: joint_directions(**good | {"labels": np.array([0.0])}),
        "sample 0: tokens 0 and 1 get the same": lambda: joint_directions(**good | {"key_query": np.zeros((2, 2))}),
        "no head classifies .* samples 0, 1": lambda: joint_directions(
            **good | twice | {"labels": np.array([1.0, -1.0])}
        ),
        "dimension": lambda: own.JointOneStepSize(dimension=3),
        "ps": lambda: own.JointTraining(ps=(3.0,)),
    }
    for name, call in cases.items():
        with pytest.raises((ValueError, TypeError), match=name):
            call()


def test_the_share_of_seeds_counts_a_seed_once_and_has_wilsons_interval():
    holds = xr.DataArray([[True, False], [True, True], [False, False]], dims=("seed", "p"))
    counts = xr.DataArray([[True, True], [True, False], [False, False]], dims=("seed", "p"))
    found = own.share_of_seeds(holds, counts)
    assert (found["share"], found["seeds"], found["runs"]) == (0.5, 2, 3)
    all_of_60 = own.share_of_seeds(xr.DataArray([True] * 60, dims="seed"), xr.DataArray([True] * 60, dims="seed"))
    assert all_of_60["low"] == pytest.approx(60 / (60 + 1.96**2))
    none = own.share_of_seeds(holds, counts & False)
    assert (none["share"], none["seeds"]) == (0, 0)


def test_a_problem_that_the_solver_cannot_do_counts_as_a_miss(monkeypatch):
    honest, small = own.joint_directions, own.JointTraining.at("smoke", ps=(2.0,), head_paces=(1.0,), chunk=2)
    hard = draw_problems([1], n_samples=3, n_tokens=3, dimension=5).tokens[0]

    def sometimes(tokens, *others, **options):
        if (tokens == hard).all(axis=(1, 2, 3)).any():
            raise RuntimeError("not solved")
        return honest(tokens, *others, **options)

    whole = small.run(device="cpu")
    monkeypatch.setattr(own, "joint_directions", sometimes)
    found = small.run(device="cpu")
    assert np.allclose(found.sel(seed=0).cosine, whole.sel(seed=0).cosine)
    missed = found.sel(seed=1).squeeze()
    assert (float(missed.cosine), float(missed.broken)) == (0, 0)


EXPERIMENTS = (own.JointTraining, own.CrowdedProblems, own.JointOneStepSize)


def some_seeds(name, change, count=8):
    """Change one array in the first seeds."""
    return lambda data: data.assign({name: xr.where(data.seed < count, change(data[name]), data[name])})


RED = {
    own.JointTraining: {
        "MD-joint-head": some_seeds("cosine_head", lambda x: 0.98 * x),
        "MD-joint": some_seeds("cosine_plain", lambda x: 0.98 * x),
        "MD-joint+": some_seeds("cosine", lambda x: 0.98 * x),
        "MD-joint-plain": lambda data: data.assign(cosine_plain=data.cosine, cosine=data.cosine_plain),
    },
    own.CrowdedProblems: {
        "MD-joint-condition": lambda data: data.assign(broken=data.broken.roll(seed=1)),
    },
    own.JointOneStepSize: {"MD-joint+-kappa": lambda data: data.assign(kappa=0 * data.kappa + 2)},
}
PARTS = {
    own.JointTraining: [
        ("MD-joint+", lambda data: data.assign(kappa=data.kappa / 2)),
        ("MD-joint+", lambda data: data.sel(seed=data.seed < 8)),
        ("MD-joint-plain", lambda data: data.assign(cosine_plain=1 - 4 * (1 - data.cosine))),
    ],
    own.CrowdedProblems: [
        ("MD-joint-condition", some_seeds("cosine", lambda x: 0.9 * x, 25)),
        ("MD-joint-condition", lambda data: data.assign(cosine=data.cosine.where(data.broken == 0, 1.0))),
    ],
    own.JointOneStepSize: [("MD-joint+-kappa", lambda data: data.assign(relative_norm=np.sqrt(data.head_norm)))],
}


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_claim_turns(kind):
    red.assert_every_claim_turns(kind.at("book").measurements, kind.load_stored("book"), RED[kind], PARTS[kind])


def test_a_law_with_a_fiftieth_of_the_ratio_finds_no_target(monkeypatch):
    small = own.JointTraining.at("book", seeds=tuple(range(12)), steps=1000, ps=(2.0,), head_paces=(16.0,), chunk=12)
    assert small.measurements(small.run(device="cpu"))["MD-joint+"].values["share"] > 0.9
    honest = relaxed.right_hand_sides
    monkeypatch.setattr(relaxed, "right_hand_sides", lambda head, kappa: honest(head, kappa / 50))
    found = small.measurements(small.run(device="cpu"))
    assert found["MD-joint+"].values["share"] < 0.5 < found["MD-joint"].values["share"]


def test_figures_and_tables_draw(smoke_results):
    first, crowded, far = (smoke_results[kind.id] for kind in EXPERIMENTS)
    with mpl.rc_context({"figure.max_open_warning": 0}):
        assert len(figures.law(first).axes) == len(figures.ratio_grows(far).axes) == 2
        plt.close("all")
    assert len(figures.by_exponent(first).rows) == 4
    assert len(figures.by_condition(own.CrowdedProblems.load_stored("book")).rows) == 2
    assert crowded.cosine.sizes["seed"] == 2


def test_an_easy_first_sample_changes_nothing_and_an_easy_second_one_turns_the_column():
    three = plane_joint()
    rows = three.tokens[0, :, 1] - three.tokens[0, :, 0]
    right = np.ones((3, 3, 1))
    right[1, 0], right[2, 1] = 0.25, 0.5
    problems, second = three.repeated(3), np.ones((3, 3), dtype=int)
    columns = relaxed_svm(problems.tokens, problems.queries, second, right, 2.0).weight[..., 0]
    np.testing.assert_allclose(columns, [[4 / 3, 1 / 3], [4 / 3, 1 / 3], [1.0, 0.5]], atol=1e-6)
    shown = (rows, right[2, :, 0], columns[0], columns[2])
    assert "turns by 12.5 degrees" in figures.easy_text(*shown)
    assert "gaps are 1.50, 0.50, 1.00" in figures.easy_text(*shown)
    plt.close(figures.easy_frame(*shown))


def test_the_axes_of_an_easy_sample_stay_where_they_are():
    """However many digits the legend has at other places of the slider."""
    rows, places = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]]), set()
    for asked in (1.0, 0.75):
        figure = figures.easy_frame(rows, np.array([1.0, asked, 1.0]), np.ones(2), np.ones(2))
        figure.draw_without_rendering()
        places.add(figure.axes[0].get_position().bounds)
        plt.close(figure)
    assert len(places) == 1


def right_newton(kappa, ratio, norm, margins, multipliers):
    slope = -(multipliers.sum(axis=1) @ (margins - 1)) / norm
    return kappa - (kappa - ratio * norm) / (1 - ratio * slope)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_the_norm_falls_with_the_ratio_at_the_rate_that_newtons_step_takes(p):
    one, head = draw_problems([0, 1], **SIZES), some_head([[1.0, 1.2, 2.0]] * 2, np.full((2, 3, 4), 0.5))

    def solved(kappa):
        return relaxed_svm(one.tokens, one.queries, CHOSEN, right_hand_sides(head, np.full(2, kappa)), p)

    slope = (solved(0.3001).norm - solved(0.2999).norm) / 2e-4
    now = solved(0.3)
    for at in range(2):
        step = right_newton(0.3, 0.9, now.norm[at], head.margins[at], now.multipliers[at])
        assert np.isclose(step, 0.3 + (0.9 * now.norm[at] - 0.3) / (1 - 0.9 * slope[at]), rtol=1e-4)


RIGHT = {"MD-11": right_newton, "MD-12": lambda n, p: p / (1 + (p - 2) / n)}
WRONG = [
    ("MD-11", lambda k, c, n, m, lam: c * n, "plain repetition"),
    ("MD-11", lambda k, c, n, m, lam: k + (c * n - k) / (1 - c * (lam.sum(1) @ (m - 1)) / n), "sign of its slope"),
    ("MD-11", lambda k, c, n, m, lam: k + (c * n - k) / (1 + c * (lam.sum(1) @ (m - 1))), "divide by the norm"),
    ("MD-12", lambda n, p: np.full(n.shape, p), "limit"),
    ("MD-12", lambda n, p: p * (1 + (p - 2) / n), "wrong way round"),
]


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_the_right_answer_is_accepted(name):
    assert CHECKS[name](RIGHT[name]) is None


@pytest.mark.parametrize(("name", "answer", "hint"), WRONG)
def test_a_wrong_answer_is_told_its_mistake(name, answer, hint):
    assert hint in CHECKS[name](answer)
