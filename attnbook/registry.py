"""All experiments of all papers, by id.

Those that a module ``<room>/<chapter>/experiments.py`` defines or gathers, and those of the scripts beside the
notebooks, ``chapters/<paper>/<chapter>.py``, in the checkout.
"""

from __future__ import annotations

import difflib
import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from attnbook.rooms import rooms

if TYPE_CHECKING:  # the command line prints its help without torch
    import attnbook.core.experiment

__all__ = ["experiment", "experiments"]


@cache
def experiments() -> dict[str, type[attnbook.core.experiment.Experiment]]:
    """Return the classes of the experiments by id, in the order of the rooms.

    Raises:
        ValueError: If two classes have the same id.
    """
    from attnbook import lab

    found: dict[str, type[attnbook.core.experiment.Experiment]] = {}
    for name in rooms().values():
        room = import_module(name)
        for chapter in sorted(module.name for module in pkgutil.iter_modules(room.__path__) if module.ispkg):
            if find_spec(f"{name}.{chapter}.experiments"):
                _add(found, import_module(f"{name}.{chapter}.experiments"))
    for script in lab.scripts():
        try:
            lab.load_script(script)
        except Exception as error:  # a reader's own slip of the pen, perhaps
            where = f"{script.parent.name}/{script.name}"
            raise ValueError(f"{where}: cannot be imported: {type(error).__name__}: {error}") from error
    for one in lab.EXPERIMENTS.values():
        if one.script.parent.parent.name == "chapters":
            found[one.id] = one.kind
    return found


def _add(found: dict[str, type[attnbook.core.experiment.Experiment]], module: ModuleType) -> None:
    """Add the experiments of a chapter's folder that its module offers: what has an id; others are bases."""
    from attnbook.core.experiment import Experiment

    for kind in vars(module).values():
        here = isinstance(kind, type) and issubclass(kind, Experiment) and hasattr(kind, "id")
        if here and kind.__module__.rpartition(".")[0] == module.__package__:
            known = found.setdefault(kind.id, kind)
            if known is not kind:
                raise ValueError(f"{module.__name__}: {kind.__name__} has the id of {known.__name__}, {kind.id!r}")


def experiment(name: str) -> type[attnbook.core.experiment.Experiment]:
    """Return the experiment with this id.

    Args:
        name: For example ``global_attention.sample_complexity``.

    Returns:
        The experiment.

    Raises:
        ValueError: If there is none; the message names the nearest ids.
    """
    known = experiments()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known)
        raise ValueError(f"experiment: no experiment {name!r}; did you mean {', '.join(near)}?")
    return known[name]
