"""Check a reader's own answer to an exercise: ``attnbook.check("GA-1", my_function)``."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from attnbook.rooms import rooms

__all__ = ["Feedback", "check", "checks"]


@dataclass(frozen=True)
class Feedback:
    """What a check says.

    Attributes:
        exercise: Its id.
        right: Whether the answer passed.
        message: What is right, or the likely mistake.
        solution: Whether the answer was the book's own solution and not the reader's.
    """

    exercise: str
    right: bool
    message: str
    solution: bool = False

    def __repr__(self) -> str:
        if self.right and self.solution:
            return f"{self.exercise}: the book's solution passes"
        return f"{self.exercise}: {'right' if self.right else 'not yet'}: {self.message}"


def checks(room: str) -> dict[str, Callable[..., str | None]]:
    """Return the checks of a room, for example ``attnbook.preconditioning``, by id of the exercise.

    They are those of each chapter's folder or script, and return the likely mistake, or None.
    """
    chapters = (module.name for module in pkgutil.iter_modules(import_module(room).__path__) if module.ispkg)
    names = [f"{room}.{chapter}.exercises" for chapter in sorted(chapters)]
    modules = [import_module(name) for name in names if find_spec(name)]
    return {i: check for module in [*modules, *_scripts(room)] for i, check in module.CHECKS.items()}


def _scripts(room: str) -> list[ModuleType]:
    """The scripts beside the notebooks of a paper."""
    lab = import_module("attnbook.lab")  # not before it is used: it needs more than torch and NumPy
    return [lab.load_script(script) for script in lab.scripts(room.rpartition(".")[2])]


def _numpy_or_torch(answer: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call an answer that is written in NumPy or in torch with NumPy arrays, and return NumPy."""
    import numpy as np  # not at the top: the package loads neither until they are needed
    import torch

    try:
        value = answer(*arguments)
    except (TypeError, AttributeError):
        tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in arguments]
        try:
            value = answer(*tensors)
        except (TypeError, AttributeError):
            value = ...
        if value is ...:  # it is wrong in both, and the first error is the one to show
            raise
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


class _NothingReturned(Exception):
    """The reader's function returned None."""


def check(exercise: str, answer: Callable[..., Any], *, solution: bool = False) -> Feedback:
    """Try a reader's function and say what is right or what the likely mistake is.

    Args:
        exercise: Id of the exercise, for example ``GA-1``, in upper or lower case.
        answer: The reader's function, with the arguments that the exercise names; ``...`` where nothing is written yet.
            Arrays are NumPy's; a function written in torch gets tensors.
        solution: Whether this is the book's own solution. It is tried like any other, but one that passes is called
            the book's solution and never "right": that word is for the reader's work. Default: the answer is the
            reader's.

    Returns:
        Feedback; an answer that raises an error gets that error as feedback.

    Raises:
        ValueError: If there is no such exercise.
        TypeError: If ``answer`` is not a function.
    """
    exercise = str(exercise).strip().upper()
    room = rooms().get(exercise.split("-")[0])
    known = checks(room) if room else {}
    if exercise not in known:
        names = [name for paper in rooms().values() for name in checks(paper)]
        raise ValueError(f"exercise: no exercise {exercise!r}; there are {', '.join(names)}")
    if answer is ...:
        return Feedback(exercise, False, "nothing is written yet: give your function in place of `...`")
    if not callable(answer):
        raise TypeError(f"answer: expected a function, got {type(answer).__name__}")

    def returned(*arguments: Any) -> Any:
        value = _numpy_or_torch(answer, arguments)
        if value is None:
            raise _NothingReturned
        return value

    try:
        mistake = known[exercise](returned)
    except _NothingReturned:
        mistake = "your function returned None: is a `return` missing?"
    except Exception as error:  # the reader's own code may fail in any way; its error is the feedback
        mistake = f"your function raised {type(error).__name__}: {error}"
    return Feedback(exercise, mistake is None, mistake or "passed on random inputs", solution)
