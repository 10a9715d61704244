"""Experiments: functions of seeds and settings that return labelled data sets.

::

    @experiment("multi_head.alternating_labels", smoke={"starts": 3, "steps": 20, "seeds": (0, 1)})
    def alternating_labels(
        seeds: Seeds = (0, 1, 2, 3, 4),
        heads: Increasing = (1, 2, 4, 16),
        steps: PositiveInt = 3000,  # of gradient descent
    ) -> xr.Dataset:
        ...
        return sweep(fitted, heads=heads)

    @alternating_labels.measures
    def _(data):
        return {"MH-OPEN-heads": {"fitted_1": data.fitted.sel(heads=1)}}

    alternating_labels.run(steps=100)     # a data set of the book's size, but for one setting
    alternating_labels.stored()           # the one that is kept with the book

The arguments are the settings, their defaults the book's size; pydantic checks them. Seeds run in groups: here, in
processes (by joblib) or on a dask cluster. Groups that take more than a moment are kept until the run has ended, so
that an interrupted run continues. A data set carries its settings and where it comes from; what is measured is
measured from it alone.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import inspect
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from dataclasses import asdict, dataclass, make_dataclass
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import numpy as np
import torch
import xarray as xr
from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, create_model

import attnbook
from attnbook.core import experiment as classes
from attnbook.core import runtime, unfinished
from attnbook.core.experiment import highest, lowest, share_of_seeds
from attnbook.core.places import cache_folder, checkout
from attnbook.core.results import (
    FORMAT,
    NO_ROOM,
    Clock,
    Measurement,
    ResultError,
    plain,
    read_json,
    stored_path,
    write_json,
)

__all__ = [
    "EXPERIMENTS",
    "Counts",
    "Experiment",
    "Increasing",
    "Seeds",
    "checkout",
    "device",
    "experiment",
    "highest",
    "listening",
    "load_script",
    "lowest",
    "scripts",
    "share_of_seeds",
    "slope",
    "sweep",
    "track",
]


def _increasing(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values or list(values) != sorted(set(values)) or not np.isfinite(values).all():
        raise ValueError("expected increasing numbers")
    return values


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError("expected at least one seed and no repeats")
    return seeds


Counts: TypeAlias = Annotated[tuple[PositiveInt, ...], AfterValidator(_increasing)]  # increasing whole numbers
Increasing: TypeAlias = Annotated[tuple[int | float, ...], AfterValidator(_increasing)]  # at least one number
Seeds: TypeAlias = Annotated[tuple[NonNegativeInt, ...], AfterValidator(_different)]  # at least one, none twice

EXPERIMENTS: dict[str, Experiment] = {}
"""Those of the scripts that were imported so far, by id."""


@dataclass(eq=False, repr=False)
class Experiment:
    """A function of seeds and settings, with sizes, a place for its results, and what reads the claims off them.

    Made by :func:`experiment`.

    Attributes:
        id: ``<paper>.<name>``.
        script: The file that defines it.
        simulate: The function itself: keyword arguments ``seeds`` and settings to a data set.
        model: Its arguments as a pydantic model.
        sizes: For ``smoke`` and, where there is one, ``full``: the settings that differ from the book's.
        paper_size: Whether the full size is the paper's own, which provenance says; else it is the largest run.
        group: Number of seeds that are trained together, as one program.
        budget_seconds: Processor time that the book's size may take.
        needs: What device: ``any``, one with ``float64``, or the ``cpu``.
        code: A digest of the script as it was when it was imported.
    """

    id: str
    script: Path
    simulate: Callable[..., xr.Dataset]
    model: type[BaseModel]
    sizes: Mapping[str, Mapping[str, Any]]
    paper_size: bool
    group: int
    budget_seconds: float
    needs: str
    code: str

    def __post_init__(self) -> None:
        self._measured: Callable[[xr.Dataset], Mapping[str, Mapping[str, Any]]] = lambda data: {}
        self.kind = _as_class(self)
        self.__doc__ = f"{inspect.getdoc(self.simulate)}\n\nSettings:\n{self._explained()}"

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.simulate.__doc__ or "").strip().split("\n")[0]

    def settings(self, size: str = "book", **changes: Any) -> dict[str, Any]:
        """Return all settings of a size, some of them changed.

        Args:
            size: ``smoke``, ``book``, or ``full`` where the experiment has it.
            **changes: Settings to change.

        Returns:
            Settings by name, ``seeds`` among them.

        Raises:
            ValueError: If there is no such size or setting, or a value does not fit; the message names it.
        """
        if runtime.known_size("size", size) not in self.has():
            raise ValueError(f"size: {self.id} has no size {size!r}, expected one of {', '.join(self.has())}")
        known = self.model.model_fields
        for name, value in {**self.sizes.get(size, {}), **changes}.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
                raise ValueError(f"{name}: {self.id} has no such setting; {hint}")
            if isinstance(value, str | bool) and not isinstance(known[name].default, str | bool):
                raise ValueError(f"{name}: expected a value such as {known[name].default!r}, got {value!r}")
        given = {name: plain(value) if _is_array(value) else value for name, value in changes.items()}
        try:
            return dict(self.model(**{**self.sizes.get(size, {}), **given}))
        except ValidationError as error:
            raise ValueError("; ".join(map(_said, error.errors()))) from None

    def has(self) -> tuple[str, ...]:
        """Return the sizes that the experiment has."""
        return ("smoke", "book", *(size for size in self.sizes if size != "smoke"))

    def run(self, size: str | None = None, *, on: str = "here", keep: Path | None = None, **changes: Any) -> xr.Dataset:
        """Train all seeds, a group at a time.

        Args:
            size: ``smoke``, ``book`` or ``full``; default that of the session (:func:`attnbook.core.runtime.use`).
                An experiment without a full size says so and takes the book's.
            on: ``here``, ``processes:N``, or the address of a dask scheduler such as ``tcp://host:8786``.
            keep: Folder for finished groups; default one in the user's cache. It is emptied when the run has ended.
            **changes: Settings to change.

        Returns:
            What the function gave for all seeds; ``experiment``, ``size``, ``settings`` and ``provenance`` are among
            the attributes.

        Raises:
            ValueError: As :meth:`settings`; or no scheduler answers, a worker has another version or was killed.
            Stopped: If the run was interrupted; the same call continues.
        """
        size = self._size(size)
        settings, clock = self.settings(size, **changes), Clock()
        seeds = settings.pop("seeds")
        groups = [seeds[i : i + self.group] for i in range(0, len(seeds), self.group)]
        label = _digest(self.id, self.code, _library(), settings, self.kind.place())
        folder = (keep or cache_folder() / "unfinished") / f"{self.id}-{label[:16]}"
        asked = [(_relative(self.script), self.id, one, settings, folder / f"{_digest(one)[:16]}.nc") for one in groups]
        try:
            with _shown(self.id):
                parts = list(_groups(asked, on))
        except KeyboardInterrupt:
            done = f"{len(list(folder.glob('*.nc')))} of {len(groups)} groups of seeds"
            raise unfinished.Stopped(f"{self.id}: stopped after {done}; run again to continue") from None
        except BrokenExecutor:
            said = "a worker process was killed, perhaps for want of memory; run again, what is finished is kept"
            raise ValueError(f"{self.id}: {said}") from None
        options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "exact"}
        data = xr.concat(parts, "seed", **options)
        data.attrs = {"experiment": self.id, "size": size, "settings": plain({"seeds": seeds, **settings})}
        data.attrs["provenance"] = _together([part.attrs["provenance"] for part in parts], clock)
        if size == "full" and data.attrs["settings"] == plain(self.settings("full")):
            data.attrs["provenance"]["paper_size"] = self.paper_size
        shutil.rmtree(folder, ignore_errors=True)
        return data

    def measures(self, function: Callable[[xr.Dataset], Any]) -> Callable[[xr.Dataset], Any]:
        """Take a function as what reads the claims off a data set.

        Args:
            function: Data set to, by claim id and name, a number or a labelled array with a value for each ``seed``;
                :func:`lowest` and :func:`highest` mark those that are summarised by an extreme, not by the median.

        Returns:
            The function.
        """
        self._measured = function
        return function

    def measure(self, data: xr.Dataset) -> dict[str, Measurement]:
        """Return what the claims say of, by claim id: medians over seeds, or the extremes asked for, and ranges.

        Args:
            data: What :meth:`run` or :meth:`stored` gave. Its own settings count, no others.

        Returns:
            Measurements by claim id.

        Raises:
            ValueError: If the data are of another experiment, or a value has dimensions besides ``seed``.
        """
        if data.attrs.get("experiment") != self.id:
            raise ValueError(f"data: expected a result of {self.id}, got one of {data.attrs.get('experiment')!r}")
        return {claim: classes._summary(claim, values) for claim, values in self._measured(data).items()}

    def store(self, data: xr.Dataset, path: Path | None = None) -> Path:
        """Write arrays as netCDF 3, and beside them, as JSON, what was measured, settings and provenance.

        Args:
            data: What :meth:`run` gave.
            path: The JSON file; default that of the book for the size of the data.

        Returns:
            The JSON file. Both appear whole or not at all; the JSON has the checksum of the arrays.

        Raises:
            ValueError: If the data would take the place of a size whose settings they do not have.
            ResultError: If a file cannot be written.
        """
        path = path or self._own_path(data)
        arrays = path.with_suffix(".nc")
        _write(data, arrays)
        head = {"format": FORMAT, "experiment": self.id}
        body = {name: data.attrs[name] for name in ("settings", "provenance")}
        measured = plain({claim: asdict(one) for claim, one in self.measure(data).items()})
        write_json(path, {**head, "measurements": measured, **body, "arrays": _checksum(data)})
        return path

    def stored(self, size: str = "book") -> xr.Dataset:
        """Return the result of a size that is kept with the book.

        Args:
            size: ``book`` or ``full``.

        Returns:
            The data set.

        Raises:
            ResultError: If it is missing or damaged.
        """
        return self._load(stored_path(self.id, size))

    def _own_path(self, data: xr.Dataset) -> Path:
        size = data.attrs["size"]
        own, its = data.attrs["settings"], plain(self.settings(size))
        if changed := [f"{name} {own.get(name)} ({its[name]})" for name in its if own.get(name) != its[name]]:
            raise ValueError(f"data: not the run of the size {size}: {', '.join(changed)}; give a path to keep it")
        return stored_path(self.id, size)

    def _load(self, path: Path) -> xr.Dataset:
        head = read_json(path, self.id)
        data = _read(path.with_suffix(".nc"))
        if _checksum(data) != head.get("arrays"):
            raise ResultError(f"{path.stem}.nc: not the arrays that {path.name} was measured from; run it again")
        return data

    def _size(self, size: str | None) -> str:
        """Return the size to run; one that an experiment lacks is never replaced silently."""
        if size is not None:
            return size
        wanted = runtime.size()
        if wanted not in self.has():
            print(f"{self.id} has no {wanted} size: this is the book's")
            return "book"
        return wanted

    def meanings(self) -> dict[str, str]:
        """Return what each setting means: by name, the comment behind the argument of the function, or nothing."""
        comments = _comments(self.simulate)
        return {name: comments.get(name, "") for name in self.model.model_fields}

    def __repr__(self) -> str:
        return f"{self.id}: {self.summary}"

    def _explained(self) -> str:
        fields, lines = self.model.model_fields, []
        for name, meaning in self.meanings().items():
            lines.append(f"    {name} = {fields[name].default!r}" + (f": {meaning}" if meaning else ""))
        return "\n".join(lines)


def experiment(
    id: str,
    *,
    group: int = 5,
    budget: float = 60,
    needs: Literal["any", "float64", "cpu"] = "any",
    smoke: Mapping[str, Any],
    full: Mapping[str, Any] | None = None,
    paper_size: bool = False,
) -> Callable[[Callable[..., xr.Dataset]], Experiment]:
    """Make a function of ``seeds`` and settings, all with defaults, an experiment.

    Args:
        id: ``<paper>.<name>``.
        group: Number of seeds that are trained together.
        budget: Processor time in seconds that the book's size may take.
        needs: Which device: ``any``, one with ``float64`` (mps has none), or the ``cpu``; default ``any``.
        smoke: Settings that make it run in a second and show nothing.
        full: Settings of the paper's own size, or of the largest run; None where there is none.
        paper_size: Whether they are the paper's own; default False.

    Returns:
        The decorator.

    Raises:
        ValueError: If an argument of the function has no default, or another script has an experiment of this id.
    """

    def made(function: Callable[..., xr.Dataset]) -> Experiment:
        hints, given = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
        for name, parameter in given.items():
            if parameter.default is parameter.empty or name not in hints:
                raise ValueError(f"{name}: expected a type and a default, since it is a setting of {id}")
        if "seeds" not in given:
            raise ValueError(f"seeds: expected among the arguments of {id}")
        fields: Any = {name: (hints[name], parameter.default) for name, parameter in given.items()}
        config = ConfigDict(extra="forbid", validate_default=True, arbitrary_types_allowed=True)
        model = create_model(function.__name__, __config__=config, **fields)
        script = Path(inspect.getfile(function)).resolve()
        known = EXPERIMENTS.get(id)
        if known and known.script != script:
            raise ValueError(f"id: {known.script.name} and {script.name} both have an experiment {id!r}")
        sizes = {"smoke": dict(smoke), **({} if full is None else {"full": dict(full)})}
        code = _digest(script.read_bytes())
        EXPERIMENTS[id] = Experiment(id, script, function, model, sizes, paper_size, group, budget, needs, code)
        for size in EXPERIMENTS[id].has():
            EXPERIMENTS[id].settings(size)  # the sizes themselves must fit
        return EXPERIMENTS[id]

    return made


def _as_class(made: Experiment) -> type[classes.Experiment]:
    """Return an experiment as the class that command line, ledger and tests know, until the last chapter has moved."""
    hints, given = get_type_hints(made.simulate), inspect.signature(made.simulate).parameters
    fields: Any = [(name, hints[name], parameter.default) for name, parameter in given.items()]

    def check(self: classes.Experiment) -> None:
        for name, value in made.settings("book", **{name: getattr(self, name) for name in given}).items():
            object.__setattr__(self, name, value)  # as pydantic reads them
        if not isinstance(self.chunk, Integral) or self.chunk < 1:
            raise ValueError(f"chunk: expected at least one seed, got {self.chunk!r}")

    def simulate(self: classes.Experiment, seeds: tuple[int, ...], where: torch.device, progress: Any) -> xr.Dataset:
        settings = {name: getattr(self, name) for name in given if name != "seeds"}
        tell = partial(_thousandths, progress) if progress else _listeners[-1]
        with listening(tell), _at(where):
            return made.simulate(seeds=seeds, **settings)

    def measure(self: classes.Experiment, data: xr.Dataset) -> Any:
        return made._measured(data.assign_attrs(settings=plain(self)))

    def load(cls: Any, path: Path) -> xr.Dataset:
        in_two = path.with_suffix(".nc").exists() or "arrays" in read_json(path, made.id)
        return made._load(path) if in_two else super(kind, cls).load(path)

    namespace: dict[str, Any] = {
        "__module__": made.simulate.__module__, "__doc__": made.simulate.__doc__, "__post_init__": check,
        "id": made.id, "summary": made.summary, "budget_seconds": made.budget_seconds, "needs": made.needs,
        "smoke": made.sizes["smoke"], "full": made.sizes.get("full"), "paper_size": made.paper_size,
        "simulate": simulate, "measure": measure, "load": classmethod(load), "code": made.code,
        "store": lambda self, data, path: made.store(data, path),
        "__reduce__": lambda self: (_again, (_relative(made.script), made.id, dict(vars(self)), _here())),
    }  # fmt: skip
    name = "".join(part.capitalize() for part in made.simulate.__name__.split("_"))
    options: Any = {"bases": (classes.Experiment,), "namespace": namespace, "frozen": True, "kw_only": True}
    kind: Any = make_dataclass(name, [*fields, ("chunk", int, made.group)], **options)
    return kind


def _again(script: str, id: str, settings: dict[str, Any], there: tuple[str, str]) -> Any:
    """Make an experiment on a worker; one that cannot be made says why when it is used, not while it is read.

    An error while a message is read would end a worker of dask, and whoever sent it would wait for ever.

    Returns:
        The experiment, or what stands for it.
    """
    try:
        _same_library(there)
        load_script(Path(script))
        return EXPERIMENTS[id].kind(**settings)
    except Exception as error:  # whatever a script does when it is imported
        said = str(error) if str(error).startswith("on: ") else f"on: a worker cannot load {script}: {error}"
        return _Unmade(said)


class _Unmade:
    """Stands for an experiment that a worker cannot make."""

    def __init__(self, said: str) -> None:
        self.said = said

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else ValueError(self.__dict__["said"])


@contextlib.contextmanager
def _shown(title: str) -> Iterator[None]:
    """Show a bar where somebody looks and nobody else listens."""
    if len(_listeners) > 1:
        yield
        return
    with runtime.progress_bar(title) as bar, listening(partial(_thousandths, bar) if bar else _listeners[-1]):
        yield


def _thousandths(progress: runtime.Progress, share: float) -> None:
    progress(round(1000 * share), 1000)


def sweep(function: Callable[..., Mapping[str, Any]], **axes: Iterable[Any]) -> xr.Dataset:
    """Return what a function gives at every point of a grid as one data set; the grid's dimensions come first.

    Args:
        function: Called with a value along each axis, in their order; returns a data set, or what makes one: name to
            number, to (dimensions, array), or to a labelled array. Of the same names and shapes at all points.
        **axes: Name of a dimension to its values, at least one.

    Returns:
        The data set; the values along the axes are its coordinates.

    Raises:
        ValueError: If an axis has no values.

    Example:
        >>> found = sweep(lambda a, b: {"sum": a + b, "both": ("end", [a, b])}, a=[1, 2], b=[10, 20, 30])
        >>> found["sum"].sel(a=2, b=30).item(), dict(found.both.sizes)
        (32, {'a': 2, 'b': 3, 'end': 2})
    """
    values = {name: list(axis) for name, axis in axes.items()}
    if empty := [name for name, axis in values.items() if not axis]:
        raise ValueError(f"{empty[0]}: expected at least one value along this axis")
    shape = tuple(map(len, values.values()))
    found = [xr.Dataset().assign(function(*point)) for point in track(list(itertools.product(*values.values())))]
    whole = {
        name: ((*axes, *first.dims), np.reshape([one[name].values for one in found], shape + first.shape))
        for name, first in found[0].data_vars.items()
    }
    return xr.Dataset(whole, {**found[0].coords, **values})


def slope(values: xr.DataArray, along: str) -> xr.DataArray:
    """Return the least-squares slope along a dimension, on log axes; NaN where a value is not positive."""
    logs = xr.apply_ufunc(np.log, values.where(values > 0))
    logs = logs.assign_coords({along: np.log(values[along].values.astype(float))})
    return logs.polyfit(along, 1, skipna=False).polyfit_coefficients.sel(degree=1, drop=True)


_listeners: list[Callable[[float], None]] = [lambda share: None]


def track(things: Iterable[Any], count: int | None = None) -> Iterator[Any]:
    """Iterate, and tell who listens which share of the work is done; loops inside a step share that step.

    Args:
        things: What to iterate over.
        count: How many there are; default their length.

    Yields:
        The things.
    """
    if count is None:
        things = list(things)
        count = len(things)
    outer = _listeners[-1]
    for i, thing in enumerate(things):
        _listeners.append(partial(_part, outer, i, count))
        try:
            yield thing
        finally:
            _listeners.pop()
        outer((i + 1) / count)


def _part(outer: Callable[[float], None], number: int, count: int, share: float) -> None:
    outer((number + share) / count)


@contextlib.contextmanager
def listening(tell: Callable[[float], None]) -> Iterator[None]:
    """Tell a function which share of the work inside the block is done, between 0 and 1.

    Args:
        tell: Called with the share, which never falls.

    Yields:
        Nothing.
    """
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.pop()


_places: list[torch.device] = []  # where the group of seeds at work computes


def device() -> torch.device:
    """Return where to compute: inside an experiment its own device, else that of the session."""
    return _places[-1] if _places else runtime.device()


@contextlib.contextmanager
def _at(place: torch.device) -> Iterator[None]:
    """Compute there, on one thread: these networks are too small for more."""
    _places.append(place)
    try:
        with runtime.threads(1):
            yield
    finally:
        _places.pop()


def load_script(script: Path) -> ModuleType:
    """Import the script of a chapter, once, whether a notebook beside it has done so or not.

    A reader's copy that was imported takes its place, wherever it lies: a file of this name that has experiments.

    Args:
        script: A Python file; one that is not absolute lies in this checkout.

    Returns:
        The module.

    Raises:
        ValueError: If there is no such file, or a script of another paper has its name.
    """
    script = (checkout() / script).resolve()
    copies = [
        known.script
        for known in EXPERIMENTS.values()
        if known.script.name == script.name and known.id.startswith(f"{script.parent.name}.")
    ]
    for module in list(sys.modules.values()):
        if Path(getattr(module, "__file__", None) or "").resolve() in [script, *copies]:
            return module
    if not script.is_file():
        raise ValueError(f"script: {script.name} is not in {script.parent.name}; use the checkout of this version")
    taken = Path(getattr(sys.modules.get(script.stem), "__file__", None) or "").resolve()
    if taken in map(Path.resolve, scripts()):  # a reader's copy somewhere else may be replaced
        raise ValueError(f"script: {taken.parent.name} has a {script.name} as well; rename one of them")
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # the file is there
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def scripts(paper: str = "*") -> list[Path]:
    """Return the scripts of the chapters of a paper, or of all, in the checkout; none outside one."""
    try:
        return sorted(checkout().glob(f"chapters/{paper}/*.py"))
    except ValueError:
        return []


def _relative(script: Path) -> str:
    """Name a script inside its checkout, so that workers elsewhere find theirs."""
    for folder in script.parents:
        if (folder / "_toc.yml").is_file():
            return script.relative_to(folder).as_posix()
    return str(script)


def _groups(asked: list[tuple[Any, ...]], on: str) -> Iterator[xr.Dataset]:
    """Yield a result for each group, in order."""
    from attnbook.core.executors import parse_where

    workers = parse_where(on)
    if workers is None:
        yield from (_group(*one) for one in track(asked))
        return
    check = _here()
    if isinstance(workers, int):
        import joblib

        tasks = [joblib.delayed(_checked_group)(check, *one) for one in asked]
        yield from track(joblib.Parallel(workers, return_as="generator")(tasks), len(tasks))
    else:
        yield from track(_on_cluster(workers, check, asked), len(asked))


def _on_cluster(address: str, check: tuple[str, str], asked: list[tuple[Any, ...]]) -> Iterator[xr.Dataset]:
    """Yield a result for each group from a dask cluster; joblib would leave one with a single core unused."""
    from attnbook.core.executors import connected

    with connected(address) as client:
        from distributed import KilledWorker

        futures = [client.submit(_checked_group, check, *one, pure=False) for one in asked]
        try:
            for future in futures:
                yield future.result()
        except (KilledWorker, CancelledError) as error:  # again and again, or the scheduler with them
            raise BrokenExecutor from error
        finally:
            client.cancel(futures)


def _checked_group(there: tuple[str, str], *asked: Any) -> xr.Dataset:
    _same_library(there)
    return _group(*asked)


def _here() -> tuple[str, str]:
    return attnbook.__version__, _library()


def _same_library(there: tuple[str, str]) -> None:
    """Refuse, on a worker, to compute something else than the one who asks would."""
    if there != _here():
        other = attnbook.__version__ if attnbook.__version__ != there[0] else "other source files"
        raise ValueError(f"on: a worker has another attnbook ({other}) than this one ({there[0]}); update it there")


def _group(script: str, id: str, seeds: tuple[int, ...], settings: Mapping[str, Any], kept: Path) -> xr.Dataset:
    """Train one group of seeds, or read it where an earlier run has kept it; on one thread: networks are small."""
    if kept.exists():
        with contextlib.suppress(ResultError):
            return _read(kept)
        print(f"{id}: the kept group of seeds {seeds} is damaged; it is trained again")
    load_script(Path(script))
    clock, place = Clock(), EXPERIMENTS[id].kind.place()
    with _at(place):
        data = EXPERIMENTS[id].simulate(seeds=seeds, **settings)
    data = data.astype(float).assign_coords(seed=list(seeds))
    data.attrs = {"provenance": clock.provenance(place)}
    if clock.spent()[0] > unfinished.PATIENCE:
        with contextlib.suppress(ResultError):  # a full disk loses no result, only the way to continue
            _write(data, kept)
    return data


def _together(runs: list[dict[str, Any]], clock: Clock) -> dict[str, Any]:
    cpu, peak = sum(run["cpu_seconds"] for run in runs), max(run["peak_memory_mib"] for run in runs)
    wall = round(clock.spent()[0], 2)
    return {**runs[-1], "wall_seconds": wall, "cpu_seconds": round(cpu, 2), "peak_memory_mib": peak}


def _write(data: xr.Dataset, path: Path) -> None:
    """Write a data set as netCDF 3, with a checksum of its arrays; the file appears whole or not at all."""
    texts = {name: json.dumps(plain(value)) for name, value in {**data.attrs, "checksum": _checksum(data)}.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as own:
            part = Path(own) / path.name
            data.assign_attrs(texts).to_netcdf(part, engine="scipy")
            part.replace(path)
    except OSError as error:
        mend = "make room and store it again" if error.errno in NO_ROOM else "choose another place"
        said = f"path: cannot write {path.name} in {path.parent.name}: {error.strerror or error}; {mend}"
        raise ResultError(said) from error


def _read(path: Path) -> xr.Dataset:
    try:
        data = xr.load_dataset(path, engine="scipy")
        data = data.assign({name: one.astype("int64") for name, one in data.variables.items() if one.dtype.kind == "i"})
        data.attrs = {name: json.loads(value) for name, value in data.attrs.items()}
        right = data.attrs.pop("checksum") == _checksum(data)
    except FileNotFoundError:
        raise ResultError(f"path: no file {path.name}") from None
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise ResultError(f"{path.name}: damaged: {error}; delete it and run again") from error
    if not right:
        raise ResultError(f"{path.name}: damaged, its checksum is another; delete it and run again")
    return data


def _checksum(data: xr.Dataset) -> str:
    total = hashlib.sha256(json.dumps(plain(data.attrs), sort_keys=True).encode())
    for name, one in sorted(data.variables.items()):
        values = np.array(one.values.tolist(), dtype=str) if one.dtype.kind in "OSU" else one.values
        values = values.astype("<f8") if values.dtype.kind in "iufb" else values
        total.update(f"{name} {one.dims} {one.shape}".encode() + values.tobytes())
    return total.hexdigest()


def _said(error: Any) -> str:
    """Say in one clause what pydantic found."""
    name = str(error["loc"][0]) if error["loc"] else "settings"
    message = re.sub(r"^(Value error|Assertion failed), |^Input should be (a valid )?", "", error["msg"])
    expected = message if message.startswith("expected") else f"expected {message}"
    return f"{name}: {expected}, got {error['input']!r}"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.generic | np.ndarray | torch.Tensor)


def _comments(function: Callable[..., Any]) -> dict[str, str]:
    """Return the comments behind the arguments of a function."""
    try:
        source = inspect.getsource(function)
    except OSError:
        return {}
    return dict(re.findall(r"^ +(\w+): [^#\n]*#:? *(.+)$", source.split('"""')[0], re.MULTILINE))


def _digest(*things: Any) -> str:
    return hashlib.sha256(repr(things).encode()).hexdigest()


@cache
def _library() -> str:
    package = Path(attnbook.__file__).parent
    return _digest(*(file.read_bytes() for file in sorted(package.rglob("*.py"))))
