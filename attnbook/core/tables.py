"""Small HTML tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import xarray as xr

from attnbook.core.experiment import Experiment

__all__ = ["Measured", "Table", "cost", "provenance", "settings", "spread"]


@dataclass(frozen=True)
class Measured:
    """A cell whose text varies from machine to machine.

    Attributes:
        text: The part that varies.
        before: The part in front of it that does not vary; default none.
    """

    text: str
    before: str = ""


@dataclass(frozen=True)
class Table:
    """A table that a notebook shows and whose stored form compares equal on every machine.

    Attributes:
        columns: Column heads.
        rows: Cells: texts, or :class:`Measured` texts, which are marked so that comparisons skip them.
        caption: One sentence below the table; may end in a measured number.
        groups: Heads above the column heads, each with the number of columns it spans; default none.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Measured]]
    caption: str | Measured
    groups: Sequence[tuple[str, int]] = ()

    def __repr__(self) -> str:
        return f"Table: {self.caption.before if isinstance(self.caption, Measured) else self.caption}"

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        if self.groups:
            above = "".join(f'<th colspan="{count}">{html.escape(text)}</th>' for text, count in self.groups)
            heads = f"{above}</tr>\n<tr>{heads}"
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in self.rows)
        return (  # an empty line comes first: with it JupyterLab labels an output that is folded
            f' \n<div class="claim-card"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table>'
            f"<p>{_content(self.caption)}</p></div>"
        )


def _cell(cell: str | Measured) -> str:
    return f"<td>{_content(cell)}</td>"


def _content(text: str | Measured) -> str:
    if isinstance(text, Measured):
        return f'{html.escape(text.before)}<span class="measured">{html.escape(text.text)}</span>'
    return html.escape(text)


def spread(samples: xr.DataArray | np.ndarray, form: str, before: str = "") -> Measured:
    """Return the cell "median [smallest, largest]" of a table.

    Args:
        samples: Values over seeds; of a single one the range is left out.
        form: Format of the three numbers.
        before: What stands in front of them; default nothing.

    Returns:
        The cell.

    Example:
        >>> spread(np.array([1.0, 3.0, 2.0]), ".1f").text
        '2.0 [1.0, 3.0]'
    """
    low, middle, high = (f"{number:{form}}" for number in np.quantile(samples, (0, 0.5, 1)))
    return Measured(f"{middle} [{low}, {high}]" if np.size(samples) > 1 else middle, before)


def cost(data: xr.Dataset, networks: int, *, programs: int = 1) -> Table:
    """Return how many networks an experiment trained, where and in what time.

    Args:
        data: What it returned.
        networks: Number of networks.
        programs: Number of batched programs they were trained in; default 1.

    Returns:
        A table of one row.
    """
    origin = data.attrs["provenance"]
    row: list[str | Measured] = [
        f"{networks}",
        Measured(f"{origin['wall_seconds']:.1f} s"),
        Measured(f"{origin['peak_memory_mib']} MiB"),
        Measured(origin["device"]),
    ]
    columns = ["networks", "time", "peak memory of the process", "device"]
    together = "All networks were trained together, as one program."
    several = f"The networks were trained as {programs} programs, each of them a batch."
    return Table(columns, [row], together if programs == 1 else several)


def settings(data: xr.Dataset) -> Table:
    """Return the settings of the run that gave these data.

    Args:
        data: What an experiment returned, or its stored result.

    Returns:
        A table with one row per setting.

    Raises:
        ValueError: If the data do not name their experiment and settings.
    """
    chosen = asdict(Experiment.from_data(data)).items()
    rows = [[name, ", ".join(map(str, v)) if isinstance(v, tuple) else str(v)] for name, v in chosen]
    return Table(["setting", "value"], rows, "Settings of this run; what each means stands in the reference.")


def provenance(data: xr.Dataset) -> Table:
    """Return how a stored result was obtained.

    Args:
        data: The result.

    Returns:
        A table with one row per fact.
    """
    facts = data.attrs["provenance"].items()
    rows: list[list[str | Measured]] = [
        [name.replace("_", " "), Measured(str(value))] for name, value in facts if name not in ("groups", "paper_size")
    ]
    return Table(["stored result", ""], rows, "How the stored result was obtained.")
