"""The library, red tests, exercises. Tests of the whole book find the rest by themselves."""

import numpy as np
import pytest
import red

import attnbook
from attnbook.paper_name.chapter_name.experiments import First
from attnbook.paper_name.means import mean_errors

RED = {"XX-T1": lambda d: d.assign(error=d.error**2)}


def test_a_mean_of_one_number_is_that_number():
    assert mean_errors(1, 5, seed=0).shape == (5,)
    with pytest.raises(ValueError, match="n_samples: expected at least 1, got 0"):
        mean_errors(0, 5, seed=0)


def test_every_claim_can_fail():
    red.assert_every_claim_turns(First.at("book").measurements, First.load_stored("book"), RED)


def test_the_exercise_names_the_mistake():
    assert attnbook.check("XX-1", lambda error: error**-2.0).right
    assert "root of the size" in repr(attnbook.check("XX-1", lambda error: np.divide(1, error)))
