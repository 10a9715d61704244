"""Digits in noise: where the digit is, what surrounds it, and how it was shrunk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.datasets import Images
from attnbook.global_attention.noisy_digits import (
    NOISE_SD,
    Scene,
    draw_background,
    draw_noisy_digits,
    place,
    shrink,
)


def test_shrinking_by_hand():
    """Three rows into two: the middle one counts half to each side."""
    image = np.array([[[0, 0, 0], [90, 90, 90], [255, 255, 255]]])
    np.testing.assert_allclose(shrink(image, 2)[0, :, 0] * 255, [30.0, 200.0], rtol=1e-14)
    np.testing.assert_allclose(shrink(image, 3) * 255, image, rtol=1e-14)


@given(size=st.integers(1, 11), seed=st.integers(0, 99))
def test_shrinking_keeps_the_mean_and_the_range(size, seed):
    images = np.random.default_rng(seed).integers(0, 256, size=(3, 11, 13))
    small = shrink(images, size)
    np.testing.assert_allclose(small.mean(axis=(1, 2)), images.mean(axis=(1, 2)) / 255, rtol=1e-12)
    assert small.min() >= 0
    assert small.max() <= 1 + 1e-12


def test_shrinking_commutes_with_turning_the_image():
    """Guards against rows and columns taken for each other."""
    images = np.random.default_rng(0).integers(0, 256, size=(2, 11, 11))
    np.testing.assert_allclose(shrink(images.transpose(0, 2, 1), 5), shrink(images, 5).transpose(0, 2, 1), rtol=1e-14)


def test_the_digit_is_in_the_centre_and_the_noise_around_it():
    scene = Scene(7, 3)
    digits, background = np.full((2, 3, 3), 5.0), np.full((2, 49), 9.0)
    images = place(digits, background, scene)
    np.testing.assert_array_equal(images == 5.0, np.stack([scene.patch == 1] * 2))
    assert scene.patch.reshape(7, 7)[2:5, 2:5].sum() == 9 == scene.patch.sum()
    assert (background == 9.0).all()


def test_a_digit_is_placed_the_right_way_up():
    digit = np.arange(6.0).reshape(1, 2, 3)[:, :, :2]
    assert place(digit, np.zeros((1, 4)), Scene(2, 2)).tolist() == [[0.0, 1.0, 3.0, 4.0]]


def test_a_wandering_digit_is_whole_and_everywhere():
    """Each image holds it once; over many images every corner is reached."""
    scene, count = Scene(7, 3, wandering=2), 400
    digit = np.arange(1.0, 10.0).reshape(1, 3, 3).repeat(count, axis=0)
    images = place(digit, np.zeros((count, 49)), scene, rng=np.random.default_rng(0)).reshape(-1, 7, 7)
    assert (images.sum(axis=(1, 2)) == 45.0).all()
    assert (images.max(axis=0)[[0, 0, -1, -1], [0, -1, 0, -1]] > 0).all()
    row, column = np.argwhere(images[0] == 1.0)[0]
    np.testing.assert_array_equal(images[0, row : row + 3, column : column + 3], digit[0])
    assert scene.patch.sum() == 49
    with pytest.raises(ValueError, match="rng"):
        place(digit, np.zeros((count, 49)), scene)


def test_a_digit_wanders_no_further_than_told():
    scene, count = Scene(9, 3, wandering=1), 200
    images = place(np.ones((count, 3, 3)), np.zeros((count, 81)), scene, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(images.max(axis=0), scene.patch)
    assert scene.patch.reshape(9, 9)[2:7, 2:7].all()
    assert scene.patch.sum() == 25


@pytest.mark.parametrize("wandering", [True, -1, 3])
def test_impossible_wandering_is_refused_by_name(wandering):
    with pytest.raises(ValueError, match="wandering"):
        Scene(7, 3, wandering=wandering)


def test_noise_has_the_mean_and_the_spread_that_its_kind_says():
    normal, uniform = (
        draw_background(500, Scene(24, 8, kind), rng=np.random.default_rng(0)) for kind in ("normal", "uniform")
    )
    assert normal.shape == uniform.shape == (500, 576)
    assert abs(normal.mean()) <= 5e-3
    assert normal.std() == pytest.approx(NOISE_SD, rel=5e-3)
    assert uniform.mean() == pytest.approx(0.5, rel=5e-3)
    assert (uniform.min(), uniform.max()) == pytest.approx((0.0, 1.0), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "name"), [((7, 8), "digit_size"), ((7, 0), "digit_size"), ((7, 3, "pink"), "noise")]
)
def test_impossible_scenes_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        Scene(*arguments)


@pytest.mark.parametrize("size", [0, 12])
def test_images_are_not_enlarged(size):
    with pytest.raises(ValueError, match="size"):
        shrink(np.zeros((1, 11, 13)), size)


@pytest.mark.parametrize(("digit", "pixels"), [(2, 49), (3, 48)])
def test_digits_and_noise_of_the_wrong_size_are_refused(digit, pixels):
    with pytest.raises(ValueError, match="digits, background"):
        place(np.zeros((1, digit, digit)), np.zeros((1, pixels)), Scene(7, 3))


def numbered_images(train=29, test=13):
    """Images of one grey value each, which is also their label."""
    grey = [np.arange(n, dtype=np.uint8) for n in (train, test)]
    flat = [np.broadcast_to(g[:, None, None], (len(g), 5, 5)) for g in grey]
    return Images(flat[0], grey[0], flat[1], grey[1], tuple("0123456789"), "numbered")


def test_labels_stay_with_their_images_and_both_parts_are_drawn_without_repeats():
    scene = Scene(7, 3)
    drawn = draw_noisy_digits(numbered_images(), scene, n_train=23, n_test=11, seed=0)
    for part in ("train", "test"):
        images, labels = getattr(drawn, part), getattr(drawn, f"{part}_labels")
        np.testing.assert_allclose(images[:, scene.patch == 1] * 255, np.repeat(labels[:, None], 9, axis=1), rtol=1e-12)
        assert len(set(labels.tolist())) == len(labels)
    assert drawn.train.shape == (23, 49)
    assert drawn.test.shape == (11, 49)


def test_a_seed_has_the_same_digits_in_every_scene_and_another_seed_others():
    labels = [
        draw_noisy_digits(numbered_images(), scene, n_train=23, n_test=1, seed=seed).train_labels
        for scene, seed in ((Scene(7, 3), 0), (Scene(11, 5, "uniform"), 0), (Scene(7, 3), 1))
    ]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert (labels[0] != labels[2]).any()


@pytest.mark.parametrize("change", [{"n_train": 30}, {"n_test": 14}, {"n_train": 0}])
def test_more_samples_than_images_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        draw_noisy_digits(numbered_images(), Scene(7, 3), **{"n_train": 1, "n_test": 1, "seed": 0, **change})
