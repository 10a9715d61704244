"""The miniature: its descent against PyTorch's, red tests, its exercise. Other tests find its room by themselves."""

import numpy as np
import pytest
import red
import torch

import attnbook
from attnbook.implicit_bias.logistic import descend, draw_samples
from attnbook.implicit_bias.max_margin_direction.experiments import Direction

RED = {
    "IB-DIR": lambda d: d.assign(angle=d.angle**2),
    "IB-NORM": lambda d: d.assign(norm=1.2 * d.norm),
    "IB-LOSS": lambda d: d.assign(loss=d.loss**1.2),
}


def test_descent_is_that_of_automatic_differentiation():
    samples, w = draw_samples(7, 1.0, 3), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-torch.tensor(samples) @ w).mean().backward()
        optimizer.step()
    assert descend(samples[None], 0.3, [4, 5])[0][1, 0] == pytest.approx(w.detach().numpy(), rel=1e-12)


@pytest.mark.parametrize("change", [{"step_size": -0.1}, {"step_size": np.nan}, {"record": [5, 4]}, {"record": []}])
def test_what_no_descent_can_be_made_of_is_refused_by_name(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}: expected"):
        descend(**{"samples": np.ones((2, 2)), "step_size": 0.1, "record": [4, 5]} | change)


def test_every_claim_can_fail_and_the_margin_is_the_one_drawn():
    data = Direction.load_stored("book")
    red.assert_every_claim_turns(Direction.at("book").measurements, data, RED)
    np.testing.assert_allclose(data.margin, 0.5)


def test_the_exercise_names_the_mistake():
    assert attnbook.check("IB-1", lambda steps, fraction: steps ** (1 / fraction)).right
    assert "fell like 1/t" in repr(attnbook.check("IB-1", lambda steps, fraction: steps / fraction))
