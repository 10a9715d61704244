"""Archives are read in memory, whole, so that their checksums are compared; what is wrong with one names it."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array

__all__ = ["DataError", "arrays_of_npz", "files_of_tar", "readable"]

# What the readers raise: RuntimeError for a method that zipfile does not know, MemoryError for a shape that is none.
DAMAGE = (OSError, EOFError, ValueError, KeyError, ArithmeticError, RuntimeError, MemoryError, zlib.error,
          tarfile.TarError, zipfile.BadZipFile)  # fmt: skip


class DataError(ValueError):
    """A data file is missing, damaged, not readable or not what it should be."""


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an error that names it.

    Raises:
        DataError: If the file cannot be opened, is damaged, cut off or of another format.
    """
    try:
        yield
    except DataError:
        raise
    except PermissionError as error:
        raise DataError(f"{file}: no permission to read it") from error
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{file}: damaged, cut off or of another format: {reason}") from error


def files_of_tar(file: Path, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    """Read a ``.tar.gz`` in one pass; nothing is unpacked to disk, so that no name leads out of a folder.

    Args:
        file: The archive.
        wanted: Whether a name is wanted.

    Yields:
        Name and content of the plain files that are wanted; a sparse one, which may claim any size, is none.

    Raises:
        DataError: If it is damaged, cut off or of another format.
    """
    with readable(file), gzip.open(file) as packed:
        with tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                if member.isreg() and not member.issparse() and wanted(member.name):
                    content = archive.extractfile(member)
                    yield member.name, content.read() if content else b""
        while packed.read(1 << 20):  # what stands behind the last file, and then the checksum
            pass


def arrays_of_npz(file: Path, *names: str) -> list[np.ndarray]:
    """Return arrays of an ``.npz`` file by name; none is unpickled.

    Raises:
        DataError: If one is missing, or the file is damaged, cut off or of another format.
    """
    with readable(file), zipfile.ZipFile(file) as archive:
        return [read_array(io.BytesIO(archive.read(f"{name}.npy"))) for name in names]
