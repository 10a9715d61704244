"""What ``attnbook.check`` says whatever the exercise: ids, nothing returned, a constant factor, the book's solution."""

import numpy as np
import pytest
import torch
from each import each

import attnbook
from attnbook.exercises import checks
from attnbook.rooms import rooms

EXERCISES = [name for room in rooms().values() for name in checks(room)]


def residual(scores, labels, *, factor=1.0):
    share = np.exp(scores - scores.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    return factor * (share - np.eye(share.shape[1])[labels]) / len(labels)


def residual_in_torch(scores, labels):
    one_hot = torch.nn.functional.one_hot(labels, scores.shape[1])
    return (torch.softmax(scores, 1) - one_hot) / len(labels)


def unfinished(*_):
    """Return the answer, some day."""


@pytest.mark.parametrize("name", ["GA-D1", "ga-d1", " Ga-D1 "])
def test_ids_in_any_case(name):
    assert repr(attnbook.check(name, residual)) == "GA-D1: right: passed on random inputs"


def test_answer_in_torch():
    assert attnbook.check("GA-D1", residual_in_torch).right


def test_torch_error_of_the_reader_is_the_feedback():
    assert "raised IndexError" in repr(attnbook.check("GA-D1", lambda scores, _: torch.softmax(scores, 5)))


def test_unfinished_starter_asks_for_a_return():
    def check(exercise):
        said = repr(attnbook.check(exercise, unfinished))
        assert said == f"{exercise}: not yet: your function returned None: is a `return` missing?"

    each(EXERCISES, check)


def test_ellipsis_is_no_error():
    assert repr(attnbook.check("GA-D1", ...)).startswith("GA-D1: not yet: nothing is written yet")


def test_constant_factor_is_recognised():
    feedback = attnbook.check("GA-D1", lambda *given: residual(*given, factor=0.5))
    assert not feedback.right
    assert "0.5 times the right numbers" in feedback.message


def test_solution_of_the_book_is_never_called_right():
    feedback = attnbook.check("ga-d1", residual, solution=True)
    assert feedback.right
    assert repr(feedback) == "GA-D1: the book's solution passes"


def test_failing_solution_of_the_book_is_not_hidden():
    feedback = attnbook.check("GA-D1", lambda *given: -residual(*given), solution=True)
    assert repr(feedback).startswith("GA-D1: not yet: the sign is reversed")


def test_error_of_the_reader_is_the_feedback():
    assert "raised ZeroDivisionError" in repr(attnbook.check("GA-D1", lambda *_: 1 / 0))
