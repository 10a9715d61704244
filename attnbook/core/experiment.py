"""The contract of every experiment: fields are settings, ``simulate`` trains, ``measure`` reads off the claims.

Running it at a size, in groups of seeds, on any executor, continued after a crash, with provenance, and storing what
came out are the same for all experiments and stand here once.

Results are :class:`xarray.Dataset` objects, stored as the JSON that xarray documents for them
(:meth:`xarray.Dataset.to_dict`). JSON rather than netCDF because a change can be read in a diff, the measured values
can be read without xarray, and every float64 comes back bit by bit: Python writes the shortest digits that do. The
price is size. The largest set of part 5 (``ablation`` with 20 seeds, 165,240 numbers) takes 2.9 MB where netCDF 3 takes
1.3 MB; packed, as git keeps both, 1.3 MB and 1.0 MB. Infinity and NaN are written as texts, as elsewhere in
``results/``: other readers of JSON do not know them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import xarray as xr

import attnbook
from attnbook.core import runtime, unfinished
from attnbook.core.results import FORMAT, Clock, Measurement, ResultError, plain, read_json, stored_path, write_json
from attnbook.core.runtime import Progress, Size, share
from attnbook.core.settings import check_known, check_types, restored

__all__ = ["Arrays", "Experiment", "highest", "lowest", "share_of_seeds", "stacked"]

Arrays = dict[str, tuple[tuple[str, ...], Any]]
"""Name to (names of the dimensions, array)."""
KINDS: dict[str, type[Experiment]] = {}
"""The classes of experiments by id, as far as their modules are loaded."""
OVER_SEEDS: Mapping[str, Callable[[np.ndarray], Any]] = {"median": np.median, "lowest": np.min, "highest": np.max}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Base of all experiments.

    A subclass is a frozen keyword-only dataclass. Its fields are the settings, with the book's size as defaults; the
    class variables below say how it is called and what the other sizes change.

    Attributes:
        seeds: Seeds of everything that is drawn.
        chunk: Seeds trained together as one program.
    """

    id: ClassVar[str]  # <paper>.<name>
    summary: ClassVar[str]  # one line for `attnbook list`
    budget_seconds: ClassVar[float] = 60  # processor time that the book's size may take
    needs: ClassVar[Literal["any", "float64", "cpu"]] = "any"  # device: any, one with float64 (mps has none), the CPU
    smoke: ClassVar[Mapping[str, Any]]  # changes that make it run in a second and show nothing
    full: ClassVar[Mapping[str, Any] | None] = None  # changes that give the full size, where there is one:
    paper_size: ClassVar[bool] = False  # the paper's own, which provenance says, else the largest run of this book

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __init_subclass__(cls, **options: Any) -> None:
        """Take note of the class; one that varies a known experiment gets an id of its own, as its data are others."""
        super().__init_subclass__(**options)
        if name := getattr(cls, "id", ""):
            known = KINDS.get(name)
            if "id" not in vars(cls) or (known and known.__module__ != cls.__module__):
                cls.id = f"{name} ({cls.__name__})"
            KINDS[cls.id] = cls

    def __post_init__(self) -> None:
        check_types(self)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: expected at least one and no repeats, got {self.seeds}")
        if self.chunk < 1:
            raise ValueError(f"chunk: expected at least one seed, got {self.chunk}")

    @classmethod
    def has(cls) -> tuple[Size, ...]:
        """Return the sizes that this experiment has."""
        return ("smoke", "book") if cls.full is None else ("smoke", "book", "full")

    @classmethod
    def at(cls, size: Size | None = None, **changes: Any) -> Self:
        """Return the experiment at a size, with some settings changed.

        Args:
            size: One of :meth:`has`; default that of the session (:func:`attnbook.core.runtime.size`), or the
                book's where the experiment has no such size, which a printed line says.
            **changes: Settings to change.

        Returns:
            The experiment, ready to run.

        Raises:
            ValueError: If the experiment has no such size or setting, or a value is outside its range.
            TypeError: If a value has the wrong type.
        """
        if size is None:
            size = runtime.size()
            if size not in cls.has():
                print(f"{cls.id} has no {size} size: this is the book's")
                size = "book"
        if runtime.known_size("size", size) not in cls.has():
            raise ValueError(f"size: {cls.id} has no size {size!r}, expected one of {', '.join(cls.has())}")
        check_known(cls, changes)
        return cls(**{**({} if size == "book" else getattr(cls, size)), **changes})

    @classmethod
    def from_data(cls, data: xr.Dataset) -> Self:
        """Return the experiment that made these data, with the settings that they name and the seeds that they hold.

        Args:
            data: What :meth:`run`, :meth:`load` or :meth:`load_stored` returned.

        Returns:
            The experiment; asked of a base class, of whatever class the data name.

        Raises:
            ValueError: If the data name no settings, or are of another experiment or of another version of it.
        """
        name, settings = data.attrs.get("experiment"), data.attrs.get("settings")
        kind = KINDS.get(name or "")
        if kind is None or settings is None or not issubclass(kind, cls):
            found = f"data of {name}" if name else "data that name no experiment and settings"
            raise ValueError(f"data: expected what {cls.__name__}.run or load_stored returned, got {found}")
        if other := ({field.name for field in dataclasses.fields(kind)} ^ set(settings)) - {"chunk"}:
            raise ValueError(f"data: made by another version of {name}, by the setting {min(other)}; run it again")
        held = {"seeds": np.atleast_1d(data["seed"]).tolist()} if "seed" in data.coords else {}
        return kind(**restored(kind, {**settings, **held}))

    def nearest(self) -> tuple[Size, str]:
        """Return the size from which the fewest settings differ, and what differs.

        Returns:
            The size, and for example ``steps 400 (6000)``, in brackets what the size has; empty where nothing differs,
            neither a setting nor the class. How seeds are grouped makes no difference.
        """
        changes: dict[Size, list[str]] = {}
        for size in sorted(self.has(), key="smoke".__eq__):  # of equals the book's
            there = self.at(size, chunk=self.chunk)
            both = [(f.name, getattr(self, f.name), getattr(there, f.name)) for f in dataclasses.fields(self)]
            changes[size] = [f"{name} {_short(mine)} ({_short(its)})" for name, mine, its in both if mine != its]
        size = min(changes, key=lambda one: len(changes[one]))
        found = [f"experiment {self.id}"] * (" " in self.id) + changes[size]
        return size, ", ".join([f"size {size}"] * (size != "book" and found != []) + found)

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train these seeds; must depend on them and the settings only.

        Args:
            seeds: The seeds of one group.
            device: Where to train.
            progress: Told (steps done, steps in all); may be None.

        Returns:
            Named arrays with named dimensions, one of them being ``seed`` in all that a seed enters.
        """
        raise NotImplementedError

    def coordinates(self) -> dict[str, Any]:
        """Return what the entries along a dimension stand for."""
        return {}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Return what was measured, by claim id.

        Args:
            data: What :meth:`run` returned.

        Returns:
            Claim to name to a number, or to one number for each ``seed``, of which :meth:`measurements` takes the
            median; what :func:`lowest` or :func:`highest` gave is summarised by its extreme.
        """
        raise NotImplementedError

    def groups(self) -> list[tuple[int, ...]]:
        """Return the groups of seeds that are trained together."""
        return [self.seeds[i : i + self.chunk] for i in range(0, len(self.seeds), self.chunk)]

    @classmethod
    def place(cls, device: str | torch.device | None = None) -> torch.device:
        """Return where it computes when this device is asked for: the CPU, where it needs that.

        Args:
            device: As for :meth:`run`.

        Returns:
            The device, which :meth:`simulate` is given and provenance names.

        Raises:
            ValueError: If the device that is asked for is not available.
        """
        asked = runtime.device(device)
        return torch.device("cpu") if cls.needs == "cpu" or (cls.needs, asked.type) == ("float64", "mps") else asked

    def run(
        self,
        *,
        device: str | torch.device | None = None,
        workdir: Path | None = None,
        executor: Executor | None = None,
        progress: Progress | None = None,
    ) -> xr.Dataset:
        """Train all seeds, a group at a time. A notebook shows how far it is.

        Interrupted or killed, the same call continues after the groups that were finished: after two seconds each is
        kept, in the user's cache (see ``attnbook.core.unfinished``), until the run ends.

        Args:
            device: Where to train; default the first of cuda, mps and cpu that the machine at work has. An experiment
                that ``needs`` another one takes that.
            workdir: Folder on this machine that keeps all finished groups, also when the run has ended; default see
                above.
            executor: Where groups run side by side: a pool of processes, or ``Client(...).get_executor()`` of
                dask.distributed for a cluster; default one after another, here.
            progress: Told (work done, work in all); inside a group only where it runs here. Default a bar in a
                notebook.

        Returns:
            What :meth:`simulate` gave for all seeds; settings, provenance and the id are among the attributes.

        Raises:
            ValueError: If the device is not available or a worker has another version of this package.
            ResultError: If a part cannot be kept, or a kept part is damaged.
            Stopped: If it is interrupted; says in one line what is kept.
        """
        if progress is None and runtime.is_watched():
            with runtime.progress_bar(self.id) as bar:
                return self.run(device=device, workdir=workdir, executor=executor, progress=bar)
        clock, groups = Clock(), self.groups()
        where = device or runtime.chosen_device() if executor else self.place(device)
        folder = workdir or (unfinished.own_folder(self) if len(groups) > 1 else None)
        files = {seeds: folder / unfinished.part_name(self, seeds, where) for seeds in groups if folder}
        parts = {seeds: part for seeds, file in files.items() if (part := self._kept(seeds, file)) is not None}
        missing = [seeds for seeds in groups if seeds not in parts]
        if parts and workdir is None:
            runtime.say(f"{self.id}: {self._seeds(parts)} were kept by a run that was stopped; it continues")
        kept = sum(part.attrs["provenance"]["wall_seconds"] for part in parts.values())
        train = self._on(executor, missing, where) if executor else self._here(missing, where, progress, len(groups))
        try:
            for seeds, part in train:
                parts[seeds] = part
                if workdir or (len(parts) < len(groups) and clock.spent()[0] > unfinished.PATIENCE):
                    files = self._keep(parts, files, workdir)
                if progress:
                    progress(len(parts), len(groups))
        except KeyboardInterrupt:
            raise self._interrupted(parts, self._keep(parts, files, workdir)) from None
        if progress and not missing:
            progress(len(groups), len(groups))
        data = self._together([parts[seeds] for seeds in groups], clock.spent()[0] + kept)
        if workdir is None:
            unfinished.clear(files.values())
        return data

    @classmethod
    def measurements(cls, data: xr.Dataset) -> dict[str, Measurement]:
        """Return the summary over seeds of what was measured, by the settings that the data name.

        Args:
            data: What :meth:`run` returned.

        Returns:
            By claim id the median, or the extreme asked for, and the range over ``seed``; a value without seeds
            stands for itself.

        Raises:
            ValueError: If a value has dimensions besides ``seed``, or the data are of another experiment, or their
                settings are of no size of the experiment and lack what a claim needs.
        """
        made_by = cls.from_data(data)
        try:
            found = made_by.measure(data)
        except Exception as error:
            if not (changes := made_by.nearest()[1]):
                raise
            reason = f"{type(error).__name__}: {' '.join(map(str, error.args)).split('. ')[0]}"
            raise ValueError(f"{changes}; the claims cannot be measured from it: {reason}") from None
        return {claim: _summary(claim, values) for claim, values in found.items()}

    def store(self, data: xr.Dataset, path: Path) -> None:
        """Write a result with its measurements; the file appears whole or not at all.

        Args:
            data: What :meth:`run` returned.
            path: Name of the file; its folder is made when missing.

        Raises:
            ResultError: If the folder or file cannot be written.
        """
        self._write(data, path, self.measurements(data))

    @classmethod
    def load(cls, path: Path) -> xr.Dataset:
        """Read a result of this experiment.

        Args:
            path: A file written by :meth:`store`.

        Returns:
            The data set that was stored.

        Raises:
            ResultError: If the file is missing, damaged, of another experiment or of another format.
        """
        raw = read_json(path, cls.id)
        try:
            for variable in (*raw["coords"].values(), *raw["data_vars"].values()):
                variable["data"] = np.array(variable["data"], dtype=variable.pop("dtype"))
            attributes = {"experiment": cls.id, "settings": raw["settings"], "provenance": raw["provenance"]}
            return xr.Dataset.from_dict({"coords": raw["coords"], "data_vars": raw["data_vars"], "attrs": attributes})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResultError(f"{path.name}: damaged: {error!r}; delete it and run again") from error

    @classmethod
    def load_stored(cls, size: Size | None = None) -> xr.Dataset:
        """Read the result of this experiment that is kept with the book.

        Args:
            size: ``book`` or ``full``; default that of the session, or the book's where no result of that size is
                stored, which a printed line says.

        Returns:
            The data set.

        Raises:
            ResultError: As :meth:`load`.
        """
        if size is None:
            size = runtime.size()
            if size != "book" and not stored_path(cls.id, size).exists():
                print(f"{cls.id} has no stored result of the {size} size: this is the book's")
                size = "book"
        return cls.load(stored_path(cls.id, runtime.known_size("size", size)))

    def _here(
        self, groups: list[tuple[int, ...]], device: str | torch.device | None, progress: Progress | None, total: int
    ) -> Iterator[tuple[tuple[int, ...], xr.Dataset]]:
        for number, seeds in enumerate(groups, total - len(groups)):
            yield seeds, _train(self, seeds, device, share(progress, number, total))

    def _on(
        self, executor: Executor, groups: list[tuple[int, ...]], device: str | torch.device | None
    ) -> Iterator[tuple[tuple[int, ...], xr.Dataset]]:
        """Yield the groups as workers finish them; a failure calls off what waits and is raised when all is quiet."""
        train = functools.partial(_train, self, device=device)
        futures: dict[Future[xr.Dataset], tuple[int, ...]] = {executor.submit(train, seeds): seeds for seeds in groups}
        waiting, failure = set(futures), None
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    failure = failure or future.exception()
                    if future.exception() is None:
                        yield futures[future], _of_this_version(future.result())
                if failure:
                    waiting = {future for future in waiting if not future.cancel()}
        finally:
            for future in waiting:
                future.cancel()
        if failure:
            raise failure

    def _kept(self, seeds: tuple[int, ...], file: Path) -> xr.Dataset | None:
        """Return the group as an earlier run of the same settings and version has kept it."""
        if not file.exists():
            return None
        try:
            part = self.load(file)
        except ResultError as error:
            if not file.exists():  # another run of the same has ended meanwhile
                return None
            raise ResultError(f"{error} (in {file.parent})") from error
        same = (
            part.attrs["settings"] == plain(self)
            and part.attrs["provenance"].get("attnbook") == attnbook.__version__
            and tuple(part["seed"].values.tolist()) == seeds
        )
        return part if same else None

    def _keep(
        self, parts: Mapping[tuple[int, ...], xr.Dataset], files: dict[tuple[int, ...], Path], workdir: Path | None
    ) -> dict[tuple[int, ...], Path]:
        """Write the groups that are not yet there, and return the files; none if the user's cache takes none."""
        try:
            for seeds, part in parts.items():
                if seeds in files and not files[seeds].exists():
                    self._write(part, files[seeds])
        except ResultError:
            if workdir:
                raise
            return {}
        return files

    def _interrupted(self, parts: Iterable[tuple[int, ...]], files: Mapping[Any, Path]) -> unfinished.Stopped:
        """What to say of a run that was interrupted."""
        done, together = self._seeds(parts), len(self.groups()[0])
        if parts and files:
            return unfinished.Stopped(f"stopped after {done}; run again to continue")
        mend = f"; with a `chunk` below {together} finished seeds would be" if not parts and together > 1 else ""
        return unfinished.Stopped(f"stopped after {done}, nothing is kept{mend}")

    def _seeds(self, parts: Iterable[tuple[int, ...]]) -> str:
        return f"{sum(map(len, parts))} of {len(self.seeds)} seeds"

    def _together(self, parts: list[xr.Dataset], wall_seconds: float) -> xr.Dataset:
        options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "exact"}
        data = xr.concat(parts, "seed", **options).assign_coords(self.coordinates())
        runs = [part.attrs["provenance"] for part in parts]
        each = [{"seeds": part["seed"].values.tolist(), **_cost(run)} for part, run in zip(parts, runs, strict=True)]
        provenance = {
            **runs[-1],
            "wall_seconds": round(wall_seconds, 2),
            "cpu_seconds": round(sum(run["cpu_seconds"] for run in runs), 2),
            "peak_memory_mib": max(run["peak_memory_mib"] for run in runs),
            "groups": each,
        }
        if self.nearest() == ("full", ""):
            provenance["paper_size"] = self.paper_size
        return data.assign_attrs(experiment=self.id, settings=plain(self), provenance=provenance)

    def _write(self, data: xr.Dataset, path: Path, measurements: Mapping[str, Measurement] | None = None) -> None:
        measured = {} if measurements is None else {"measurements": plain(measurements)}
        head = {"format": FORMAT, "experiment": self.id, **measured}
        origin = {name: data.attrs[name] for name in ("settings", "provenance")}
        arrays = {"coords": _variables(data.coords), "data_vars": _variables(data.data_vars)}
        write_json(path, {**head, **origin, **arrays})


def stacked(dimension: str, found: Iterable[Arrays]) -> Arrays:
    """Return arrays of the same names and shapes along a new first dimension.

    Args:
        dimension: Name of the new dimension.
        found: What was found for each of its entries, at least one.

    Returns:
        The arrays.
    """
    rows = list(found)
    return {name: ((dimension, *dims), np.stack([row[name][1] for row in rows])) for name, (dims, _) in rows[0].items()}


def lowest(values: xr.DataArray) -> xr.DataArray:
    """Return each seed's smallest value, marked for a summary by the smallest of all instead of the median.

    Args:
        values: Measured, ``seed`` among the dimensions.

    Returns:
        One value for each seed; NaN where one is.
    """
    others = [dimension for dimension in values.dims if dimension != "seed"]
    return values.min(others, skipna=False).assign_attrs(over_seeds="lowest")


def highest(values: xr.DataArray) -> xr.DataArray:
    """Return each seed's largest value, marked for a summary by the largest of all instead of the median.

    Args:
        values: Measured, ``seed`` among the dimensions.

    Returns:
        One value for each seed; NaN where one is.
    """
    others = [dimension for dimension in values.dims if dimension != "seed"]
    return values.max(others, skipna=False).assign_attrs(over_seeds="highest")


def share_of_seeds(passed: xr.DataArray, side: int = 0) -> xr.DataArray:
    """Return the share of seeds that pass a test, or an end of its 95 % interval (Wilson's score interval).

    Args:
        passed: Whether each seed passes, ``seed`` among the dimensions; NaN is left out.
        side: 0 for the share, -1 or 1 for the lower or the upper end; default 0.

    Returns:
        Shares between 0 and 1.

    Example:
        >>> passed = xr.DataArray(np.ones(20), dims="seed")
        >>> float(share_of_seeds(passed)), round(float(share_of_seeds(passed, -1)), 3)
        (1.0, 0.839)
    """
    n, p, z = passed.count("seed"), passed.mean("seed"), 1.96 * side
    middle, spread = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return (middle + spread) / (1 + z**2 / n)


def _train(
    experiment: Experiment, seeds: tuple[int, ...], device: str | torch.device | None, progress: Progress | None = None
) -> xr.Dataset:
    """Train one group of seeds, on this machine or a worker."""
    clock, where = Clock(), experiment.place(device)
    found: Any = experiment.simulate(seeds, where, progress)
    if not isinstance(found, xr.Dataset):
        found = xr.Dataset({name: (dims, np.asarray(array)) for name, (dims, array) in found.items()})
    data = found.astype(np.float64).assign_coords(seed=list(seeds))
    return data.assign_attrs(settings=plain(experiment), provenance=clock.provenance(where))


def _short(value: Any) -> str:
    """A setting in a line; the middle of a long one is left out."""
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join(map(str, value if len(value) <= 8 else (*value[:3], "…", value[-1])))


def _of_this_version(part: xr.Dataset) -> xr.Dataset:
    """Refuse what another version of this package has trained: a worker may have come after the others were asked."""
    version = part.attrs["provenance"]["attnbook"]
    if version != attnbook.__version__:
        raise ValueError(f"executor: a worker has attnbook {version}; install {attnbook.__version__} there")
    return part


def _cost(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {name: provenance[name] for name in ("device", "wall_seconds", "cpu_seconds")}


def _variables(variables: Mapping[Any, xr.DataArray]) -> dict[str, Any]:
    """What :meth:`xarray.Dataset.to_dict` gives, with the type of each array."""
    return {
        str(name): {"dims": list(v.dims), "dtype": str(v.dtype), "data": plain(v.values)}
        for name, v in variables.items()
    }


def _summary(claim: str, values: Mapping[str, xr.DataArray]) -> Measurement:
    for name, value in values.items():
        dimensions = getattr(value, "dims", ("unnamed",) * np.ndim(value))
        if dimensions not in ((), ("seed",)):
            raise ValueError(f"{claim}: {name} has dimensions {dimensions}, expected none but 'seed'")
    numbers = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in values.items()}
    spread = {name: (float(v.min()), float(v.max())) for name, v in numbers.items() if len(v) > 1}
    how = {name: OVER_SEEDS[getattr(value, "attrs", {}).get("over_seeds", "median")] for name, value in values.items()}
    found = {name: float(how[name](v)) for name, v in numbers.items()}
    return Measurement(found, spread, max(map(len, numbers.values())))
