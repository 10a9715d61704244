"""Check a reader's own answer to an exercise: ``attnbook.check("GA-1", my_function)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from attnbook.rooms import ROOMS

__all__ = ["Feedback", "check"]


@dataclass(frozen=True)
class Feedback:
    """What a check says.

    Attributes:
        exercise: Its id.
        right: Whether the answer passed.
        message: What is right, or the likely mistake.
    """

    exercise: str
    right: bool
    message: str

    def __repr__(self) -> str:
        return f"{self.exercise}: {'right' if self.right else 'not yet'}: {self.message}"


def check(exercise: str, answer: Callable[..., Any]) -> Feedback:
    """Try a reader's function and say what is right or what the likely mistake is.

    Args:
        exercise: Id of the exercise, for example ``GA-1``.
        answer: The reader's function, with the arguments that the exercise names.

    Returns:
        Feedback; an answer that raises an error gets that error as feedback.

    Raises:
        ValueError: If there is no such exercise.
        TypeError: If ``answer`` is not a function.
    """
    room = ROOMS.get(str(exercise).split("-")[0])
    checks = import_module(f"{room}.exercises").CHECKS if room else {}
    if exercise not in checks:
        known = [name for paper in ROOMS.values() for name in import_module(f"{paper}.exercises").CHECKS]
        raise ValueError(f"exercise: no exercise {exercise!r}; there are {', '.join(known)}")
    if not callable(answer):
        raise TypeError(f"answer: expected a function, got {type(answer).__name__}")
    try:
        mistake = checks[exercise](answer)
    except Exception as error:  # the reader's own code may fail in any way; its error is the feedback
        mistake = f"your function raised {type(error).__name__}: {error}"
    return Feedback(exercise, mistake is None, mistake or "passed on random inputs")
