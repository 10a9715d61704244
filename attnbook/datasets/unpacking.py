"""Archives are read in memory, as far as their checksums, and only up to a size; what is wrong with one names it."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from attnbook.datasets.downloading import DataError

__all__ = ["in_tar", "in_zip", "readable", "unpacked"]

# What the readers raise: RuntimeError for a method that zipfile does not know, MemoryError for a shape that is none.
DAMAGE = (OSError, EOFError, ValueError, KeyError, ArithmeticError, RuntimeError, MemoryError, zlib.error,
          tarfile.TarError, zipfile.BadZipFile)  # fmt: skip
# What unpacks to more than this many times its size is a bomb, unless it stays small: real files stay below ten times.
EXPANSION, SMALL = 100, 1 << 24


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


@contextmanager
def unpacked(file: Path) -> Iterator[IO[bytes]]:
    """Yield the content of a gzip file; on leaving it is read as far as the checksum at its end, which is compared.

    Raises:
        DataError: If it is damaged, cut off, of another format or a bomb.
    """
    with readable(file), gzip.open(file) as packed, io.BufferedReader(_Bounded(packed, file)) as content:
        yield content
        _to_the_end(content)


def in_tar(file: Path, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    """Read a ``.tar.gz`` in one pass; nothing is unpacked to disk, so that no name leads out of a folder.

    Args:
        file: The archive.
        wanted: Whether a name is wanted.

    Yields:
        Name and content of the plain files that are wanted.

    Raises:
        DataError: If it is damaged, cut off, of another format or a bomb.
    """
    with unpacked(file) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
        for member in archive:
            # a sparse one may be of any size: its holes take no place in the archive
            if member.isreg() and not member.issparse() and wanted(member.name):
                content = archive.extractfile(member)
                yield member.name, content.read() if content else b""


@contextmanager
def in_zip(file: Path, *names: str) -> Iterator[list[IO[bytes]]]:
    """Yield members of a zip archive, as binary files; on leaving each is read to its end and its checksum compared.

    Raises:
        DataError: If one is missing, or the archive is damaged, cut off, of another format or a bomb.
    """
    with readable(file), zipfile.ZipFile(file) as archive, ExitStack() as stack:
        members = [archive.getinfo(name) for name in names]
        _refuse_bomb(file, sum(member.file_size for member in members))
        opened = [stack.enter_context(archive.open(member)) for member in members]
        yield opened
        for content in opened:
            _to_the_end(content)


class _Bounded(io.RawIOBase):
    """What is unpacked from a file, unless it is a bomb."""

    def __init__(self, packed: gzip.GzipFile, file: Path) -> None:
        self.packed, self.file, self.size = packed, file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self.packed.readinto(buffer)
        self.size += read
        _refuse_bomb(self.file, self.size)
        return read


def _to_the_end(content: IO[bytes]) -> None:
    while content.read(1 << 20):
        pass


def _refuse_bomb(file: Path, size: int) -> None:
    if size > SMALL and size > EXPANSION * file.stat().st_size:
        raise DataError(f"{file}: unpacks to more than {EXPANSION} times its size, as no data do; get it again")
