"""Digits in noise: where the digit is, what surrounds it, and how it was shrunk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import Images
from attnbook.global_attention.noisy_digits import NOISE_SD, Scene, _shrink, draw_noisy_digits


def images_of(train, test, labels=None):
    labels = np.arange(len(train), dtype=np.uint8) if labels is None else labels
    return Images(train, labels, test, np.arange(len(test), dtype=np.uint8), tuple("0123456789"), "made")


def numbered_images(train=29, test=13):
    """Images of one grey value each, which is also their label."""
    grey = [np.arange(n, dtype=np.uint8) for n in (train, test)]
    return images_of(*(np.broadcast_to(g[:, None, None], (len(g), 5, 5)) for g in grey))


def draw(images, scene, n_train=23, n_test=11, seed=0):
    return draw_noisy_digits(images, scene, n_train=n_train, n_test=n_test, seed=seed)


def test_shrinking_by_hand():
    """Three rows into two: the middle one counts half to each side."""
    image = np.array([[[0, 0, 0], [90, 90, 90], [255, 255, 255]]])
    np.testing.assert_allclose(_shrink(image, 2)[0, :, 0] * 255, [30.0, 200.0], rtol=1e-14)
    np.testing.assert_allclose(_shrink(image, 3) * 255, image, rtol=1e-14)


@given(size=st.integers(1, 11), seed=st.integers(0, 99))
def test_shrinking_keeps_mean_and_range_and_commutes_with_turning_the_image(size, seed):
    images = np.random.default_rng(seed).integers(0, 256, size=(3, 11, 13))
    small = _shrink(images, size)
    np.testing.assert_allclose(small.mean(axis=(1, 2)), images.mean(axis=(1, 2)) / 255, rtol=1e-12)
    assert -1e-12 <= small.min() <= small.max() <= 1 + 1e-12
    np.testing.assert_allclose(_shrink(images.transpose(0, 2, 1), size), small.transpose(0, 2, 1), rtol=1e-12)


def test_a_digit_is_placed_the_right_way_up():
    digit = np.array([[[0, 51], [102, 153]]], dtype=np.uint8)
    np.testing.assert_allclose(draw(images_of(digit, digit), Scene(2, 2), 1, 1).train, [[0, 0.2, 0.4, 0.6]])


@pytest.mark.parametrize(("wandering", "side"), [(0, 3), (1, 5), (2, 7)])
def test_a_digit_is_whole_and_everywhere_it_may_be_and_nowhere_else(wandering, side):
    """White digits: each image holds one whole; over many images they fill the patch, and in the centre only it."""
    scene, white = Scene(9, 3, wandering=wandering), np.full((400, 5, 5), 255, dtype=np.uint8)
    drawn = draw(images_of(white, white), scene, 400, 1).train.reshape(-1, 9, 9)
    drawn = np.isclose(drawn, 1.0, rtol=0, atol=1e-12)
    assert (drawn.sum(axis=(1, 2)) == 9).all()
    np.testing.assert_array_equal(drawn.any(axis=0), scene.patch.reshape(9, 9) == 1)
    start = (9 - side) // 2
    assert scene.patch.reshape(9, 9)[start : start + side, start : start + side].all()
    assert scene.patch.sum() == side**2


def test_noise_has_the_mean_and_the_spread_that_its_kind_says():
    black = np.zeros((500, 8, 8), dtype=np.uint8)
    scenes = [Scene(24, 8, kind) for kind in ("normal", "uniform")]
    normal, uniform = (draw(images_of(black, black), s, 500, 1).train[:, s.patch == 0] for s in scenes)
    assert abs(normal.mean()) <= 5e-3
    assert normal.std() == pytest.approx(NOISE_SD, rel=5e-3)
    assert uniform.mean() == pytest.approx(0.5, rel=5e-3)
    assert (uniform.min(), uniform.max()) == pytest.approx((0.0, 1.0), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((7, 8), "digit_size"), ((7, 0), "digit_size"), ((7, 3, "pink"), "noise")]
    + [((7, 3, "normal", w), "wandering") for w in (True, -1, 3)],
)
def test_impossible_scenes_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        Scene(*arguments)


def test_labels_stay_with_their_images_and_both_parts_are_drawn_without_repeats():
    scene = Scene(7, 3)
    drawn = draw(numbered_images(), scene)
    for part in ("train", "test"):
        images, labels = getattr(drawn, part), getattr(drawn, f"{part}_labels")
        np.testing.assert_allclose(images[:, scene.patch == 1] * 255, np.repeat(labels[:, None], 9, axis=1), rtol=1e-12)
        assert len(set(labels.tolist())) == len(labels)
    assert drawn.train.shape == (23, 49)
    assert drawn.test.shape == (11, 49)


def test_a_seed_has_the_same_digits_in_every_scene_and_another_seed_others():
    scenes = ((Scene(7, 3), 0), (Scene(11, 5, "uniform"), 0), (Scene(7, 3), 1))
    labels = [draw(numbered_images(), scene, seed=seed).train_labels for scene, seed in scenes]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert (labels[0] != labels[2]).any()


@pytest.mark.parametrize(
    ("scene", "change", "name"),
    [(Scene(7, 3), {name: n}, name) for name, n in (("n_train", 30), ("n_test", 14), ("n_train", 0))]
    + [(Scene(7, 6), {}, "digit_size")],
)
def test_more_samples_than_images_and_larger_digits_are_refused_by_name(scene, change, name):
    with pytest.raises(ValueError, match=name):
        draw(numbered_images(), scene, **{"n_train": 1, "n_test": 1, **change})
