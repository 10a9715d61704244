"""Teachers of sentences: weights known by hand, what each mechanism can see, labels of variance one."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.global_attention.word_teachers import draw_word_teacher, order_blind_floor

SIZES = {"n_words": 7, "dimension": 5, "width": 11, "focus": 2.5}


@cache
def teacher(mechanism, seed=0, **change):
    return draw_word_teacher(mechanism, seed, **SIZES | change)


def sentences(count=13, seed=0, n_words=7):
    return np.random.default_rng(seed).standard_normal((count, n_words, 5))


@pytest.mark.parametrize("mechanism", ["attention", "two_looks", "position"])
def test_weights_are_positive_and_sum_to_one(mechanism):
    weights = teacher(mechanism).weights(sentences())
    assert weights.shape == (13, 7)
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("mechanism", ["attention", "two_looks", "position"])
def test_without_focus_all_words_weigh_the_same(mechanism):
    np.testing.assert_allclose(teacher(mechanism, focus=0.0).weights(sentences()), 1 / 7, rtol=1e-12)


@pytest.mark.parametrize("mechanism", ["attention", "two_looks", "position"])
def test_labels_have_variance_one(mechanism):
    labels = teacher(mechanism)(sentences(20_000, seed=1))
    assert labels.std() == pytest.approx(1, abs=0.05)


@settings(deadline=None)  # the first example draws the teachers
@given(st.integers(0, 20))
def test_only_the_teacher_of_places_sees_the_order(seed):
    x = sentences(seed=seed)
    for mechanism in ("attention", "two_looks"):
        np.testing.assert_allclose(teacher(mechanism)(x[:, ::-1]), teacher(mechanism)(x), rtol=1e-9, atol=1e-12)
    assert not np.allclose(teacher("position")(x[:, ::-1]), teacher("position")(x))


def test_only_the_second_look_depends_on_the_other_words():
    x = sentences()
    changed = x.copy()
    changed[:, 2:] = sentences(seed=1)[:, 2:]
    for mechanism, depends in {"attention": False, "position": False, "two_looks": True}.items():
        odds = [np.divide(*teacher(mechanism).weights(s)[:, :2].T) for s in (x, changed)]
        assert np.allclose(*odds, rtol=1e-9) != depends


def test_the_second_look_does_not_see_the_direction_of_the_first():
    second = teacher("two_looks")
    np.testing.assert_allclose(second.turn @ second.query, 0, atol=1e-12)


def test_a_sentence_whose_words_are_all_equal_is_read_as_that_word():
    """By hand: any weights that sum to one give the word itself."""
    word = np.arange(5.0)
    for mechanism in ("attention", "two_looks", "position"):
        t = teacher(mechanism)
        expected = np.maximum(t.hidden @ word, 0) @ t.decoder
        assert t(np.tile(word, (1, 7, 1)))[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"n_words": 0}, "n_words"), ({"dimension": 1}, "dimension"), ({"width": 0}, "width")]
    + [({"focus": s}, "focus") for s in (-1.0, float("inf"), float("nan"))],
)
def test_impossible_teachers_are_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        teacher("attention", **change)


def test_unknown_mechanisms_are_refused_by_name():
    with pytest.raises(ValueError, match="mechanism"):
        teacher("magic")


def floor(teacher, sentences, shuffles, seed=1):
    return order_blind_floor(teacher, sentences, shuffles, np.random.default_rng(seed))


def test_order_blind_models_lose_nothing_where_order_does_not_matter():
    assert floor(teacher("attention"), sentences(50), 3) < 1e-25
    assert floor(teacher("position"), sentences(50), 3) > 0.1
    with pytest.raises(ValueError, match="shuffles"):
        floor(teacher("position"), sentences(3), 1)


def test_the_floor_of_two_words_is_the_variance_over_both_orders():
    """By hand: two words have two orders; the variance is a quarter of the squared difference."""
    t, x = teacher("position", n_words=2), sentences(400, n_words=2)
    exact = ((t(x) - t(x[:, ::-1])) ** 2 / 4).mean()
    assert floor(t, x, 300) == pytest.approx(exact, rel=0.02)
