"""The comparison on data of one's own: what it finds where the answer is known, and what it refuses."""

import numpy as np
import pytest
import torch

from attnbook.global_attention import comparison
from attnbook.global_attention.comparison import MODELS, compare

QUICK = {"width": 5, "steps": 30, "batch_size": 7, "step_sizes": (0.1,), "penalties": (1e-2,), "seeds": (0, 1)}


def samples(n=61, tokens=3, dimension=2, seed=0):
    """Labels by the sign of the mean of all entries: what pooling sees."""
    inputs = np.random.default_rng(seed).standard_normal((n, tokens, dimension))
    return inputs, (inputs.mean((1, 2)) > 0).astype(int)


@pytest.fixture(scope="module")
def found():
    return compare(*samples(), **QUICK)


def test_every_model_has_curves_and_both_readings(found):
    assert found.data.model.values.tolist() == list(MODELS)
    assert found.data.accuracy.dims == ("model", "record", "seed")
    for name in ("accuracy_at_steps", "accuracy_at_loss", "baseline_at_loss", "common_loss"):
        assert set(found.data[name].dims) == {"model", "seed"}
        assert np.isfinite(found.data[name]).all()


def test_the_baseline_is_compared_with_itself(found):
    baseline = found.data.sel(model="baseline")
    assert np.array_equal(baseline.accuracy_at_loss, baseline.baseline_at_loss)
    assert np.array_equal(baseline.common_loss, baseline.train_loss.min("record"))


def test_figure_and_table_have_every_model(found):
    figure = found.figure()
    assert len(figure.axes[0].lines) == len(MODELS)
    assert [row[0] for row in found.table().rows] == [model.replace("_", " ") for model in MODELS]


def test_the_same_seeds_give_the_same_numbers_and_another_seed_changes_none(found):
    again = compare(*samples(), **{**QUICK, "seeds": (1,)})
    assert np.allclose(again.data.train_loss, found.data.train_loss.sel(seed=[1]), rtol=1e-5)


def test_another_candidate_changes_no_curve_of_the_chosen_one(found):
    both = compare(*samples(), **{**QUICK, "step_sizes": (0.1, 1e-9)})
    chosen = both.data.step_size == 0.1
    assert chosen.sum() >= 2
    assert np.allclose(both.data.train_loss[chosen], found.data.train_loss[chosen], rtol=1e-5)


def test_features_are_tokens_with_one_entry():
    inputs, labels = samples(dimension=1)
    flat, stacked = (compare(x, labels, **QUICK).data.train_loss for x in (inputs[:, :, 0], inputs))
    assert np.array_equal(flat, stacked)


def test_a_mask_finds_the_one_feature_that_matters_and_pooling_cannot():
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((149, 67))
    data = compare(inputs, inputs[:, 11] > 0, step_sizes=(0.1,), penalties=(1e-2,), steps=300, seeds=(0, 1)).data
    accuracy = data.accuracy_at_steps.median("seed")
    assert accuracy.sel(model="l1_mask") > 0.9 > accuracy.sel(model="baseline")
    assert accuracy.sel(model="group_penalty") > accuracy.sel(model="baseline")
    assert accuracy.sel(model="mean_pooling") < 0.7


def test_pooling_wins_where_the_mean_decides():
    data = compare(*samples(n=97, tokens=31, dimension=1), step_sizes=(0.1,), penalties=(1e-3,), steps=200).data
    accuracy = data.accuracy_at_steps.median("seed")
    assert accuracy.sel(model="mean_pooling") > accuracy.sel(model="baseline") + 0.05


def test_scores_are_those_of_one_network_after_another():
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "hidden": (6, 5, 2, 3),
        "hidden_bias": (6, 5),
        "decoder": (6, 4, 5),
        "decoder_bias": (6, 4),
        "mask": (6, 3),
    }
    parameters = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    inputs = torch.randn((2, 7, 2, 3), generator=generator)  # two seeds, three candidates each
    together = comparison._scores(parameters, inputs).flatten(0, 1)
    for member in range(6):
        one = {name: tensor[member] for name, tensor in parameters.items()}
        masked = (inputs[member // 3] * one["mask"]).flatten(1)
        hidden = (masked @ one["hidden"].flatten(1).T + one["hidden_bias"]).relu()
        torch.testing.assert_close(together[member], hidden @ one["decoder"].T + one["decoder_bias"])


def test_the_group_penalty_is_per_token():
    """A large one sets every token to zero and leaves the biases, which know the shares of the classes."""
    data = compare(*samples(), **{**QUICK, "penalties": (10.0,)}).data.train_loss.isel(record=-1)
    assert np.allclose(data.sel(model="group_penalty"), np.log(2), atol=0.1)
    assert (data.sel(model="baseline") < 0.3).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": np.zeros(7)}, r"^inputs: expected \(samples, features\)"),
        ({"inputs": np.zeros((0, 3))}, "none empty"),
        ({"inputs": [["a", "b"]] * 61}, "^inputs: expected an array of numbers"),
        ({"inputs": np.where(np.arange(183).reshape(61, 3) == 5, np.nan, 1.0)}, "^inputs: 1 of 183 entries"),
        ({"inputs": np.ones((61, 3))}, "^inputs: all entries of the training part are equal"),
        ({"labels": np.zeros(61)}, "^labels: all are"),
        ({"labels": np.zeros(60)}, "^labels: expected one class for each of 61"),
        ({"labels": np.full(61, np.nan)}, "^labels: some are NaN"),
        ({"inputs": np.eye(3), "labels": np.arange(3)}, "too few to hold out"),
        ({"inputs": np.eye(7), "labels": np.arange(7)}, "too few to hold out"),
        ({"steps": 0}, "^steps: expected at least 1"),
        ({"step_sizes": ()}, "^step_sizes: expected positive"),
        ({"penalties": (-1.0,)}, "^penalties: expected positive"),
        ({"held_out": 0.5}, "^held_out: expected a share"),
        ({"seeds": (1, 1)}, "^seeds: expected different"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    inputs, labels = samples()
    with pytest.raises(ValueError, match=message):
        compare(**{"inputs": inputs, "labels": labels, **QUICK, **changes})


def test_a_wrong_type_is_refused_by_name():
    with pytest.raises(TypeError, match=r"^width: expected int"):
        compare(*samples(), **{**QUICK, "width": 2.5})
