"""Agreement of the pushes on a mask: of hidden units within a batch, and of batches."""

import numpy as np
import pytest
import torch

from attnbook import datasets
from attnbook.global_attention import digit_training as models
from attnbook.global_attention.agreement import measure_agreement
from attnbook.global_attention.digit_training import Member, Training
from attnbook.global_attention.noisy_digits import Scene

CPU, SCENE = torch.device("cpu"), Scene(9, 5)
TRAINING = Training(steps=12, batch_size=7, momentum=0.9, width=6, n_train=40, n_test=13, record_at=(0, 12))


def measured(seeds=(0, 1), steps=range(2, 9)):
    members = [Member("attention", seed, SCENE, 0.1) for seed in seeds]
    return measure_agreement(members, datasets.digits(), TRAINING, steps=steps, device=CPU, dtype=torch.float64)


def test_agreement_is_a_share_and_of_each_network_alone():
    both, alone = measured(), measured(seeds=(1,))
    for name, values in vars(both).items():
        assert values.shape == (2, 81)
        assert np.nanmin(values) >= 0
        assert np.nanmax(values) <= 1 + 1e-12
        if "chance" not in name:
            np.testing.assert_allclose(values[1], getattr(alone, name)[0], rtol=1e-9)


def test_pushes_are_those_of_plain_autograd_on_the_batches_of_the_training():
    """Weights after one and two steps of momentum by hand, gradients of the batches that come next by autograd."""
    images, member = datasets.digits(), Member("attention", 0, SCENE, 0.1)
    data = models._Data([member], images, TRAINING, CPU, torch.float64)
    pushes, cosines = [], []
    for step in (1, 2):
        parameters = models._initial_parameters([member], TRAINING.width, data)
        rule, velocity = models._Rule([member], data), {}
        for past in range(step):
            _, gradients = rule(parameters, data.batch(past))
            for name, gradient in gradients.items():
                velocity[name] = 0.9 * velocity.get(name, 0) + gradient
                parameters[name] = parameters[name] - velocity[name]
        x, y = data.batch(step)
        folded = (parameters["hidden"] * parameters["mask"].unsqueeze(1)).requires_grad_()
        ones = {**parameters, "hidden": folded, "mask": torch.ones_like(parameters["mask"])}
        loss = torch.nn.functional.cross_entropy(models.scores(ones, x), y)
        (slope,) = torch.autograd.grad(loss, folded)
        pushes.append((slope * parameters["hidden"]).sum(1)[0].detach())
        lengths = slope.norm(dim=1)[0] * parameters["hidden"].norm(dim=1)[0]
        cosines.append((pushes[-1].abs() / lengths).detach().nan_to_num())  # 0 where a batch leaves a pixel dark
    found, pushes = measured(seeds=(0,), steps=range(1, 3)), torch.stack(pushes)
    seen = ~np.isnan(found.units[0])
    np.testing.assert_allclose(found.units[0][seen], torch.stack(cosines).mean(0).numpy()[seen], rtol=1e-9)
    expected = (pushes.sum(0).abs() / pushes.abs().sum(0)).numpy()
    np.testing.assert_allclose(found.batches[0][seen], expected[seen], rtol=1e-9)


def test_a_pixel_that_is_always_dark_has_no_agreement():
    images = datasets.digits()
    dark = datasets.Images(**{**vars(images), "train": 0 * images.train, "test": 0 * images.test})
    member = Member("attention", 0, SCENE, 0.1)
    found = measure_agreement([member], dark, TRAINING, steps=range(2), device=CPU)
    np.testing.assert_array_equal(np.isnan(found.batches[0]), SCENE.patch == 1)


@pytest.mark.parametrize("steps", [range(3, 4), range(0, 6, 2), range(5, 14), range(-1, 3)])
def test_impossible_steps_are_refused_by_name(steps):
    with pytest.raises(ValueError, match="steps"):
        measured(steps=steps)
