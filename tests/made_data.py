"""Small made files of every data set, and what can be wrong with them: for the tests and for ``tools/faults.py``."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from attnbook import data
from attnbook.data.images import BATCHES

MNIST = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
OUTSIDE = "../outside.txt"


@dataclass(frozen=True)
class Made:
    """A made data set: its files, what loads it from ``ATTNBOOK_DATA``, and the names that archives are read by."""

    files: dict[str, bytes]
    load: Callable[..., Any]
    members: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """The file that is damaged."""
        return list(self.files)[-1]

    def read(self, folder: Path, content: bytes | None = None) -> Any:
        """Load it from this folder of data, with another last file if one is given."""
        for path, good in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(good if content is None or path != self.last else content)
        with mock.patch.dict(os.environ, ATTNBOOK_DATA=str(folder)):
            return self.load(download=False, stand_in=False)


def sets() -> dict[str, Made]:
    """All data sets in all their forms."""
    labels, rng = np.arange(5, dtype=np.uint8), np.random.default_rng(0)
    grey, colour = (rng.integers(0, 256, (5, *shape), np.uint8) for shape in ((4, 6), (32, 32, 3)))
    records = b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, colour, strict=True))
    reviews = {f"aclImdb/{s}/{k}/7_{r}.txt": b"So so." for s in ("train", "test") for k, r in (("neg", 2), ("pos", 9))}
    entry = {"id": 7, "label": 1, "rating": 9, "text": "So so."}
    line = gzip.compress(json.dumps(entry).encode() + b"\n", mtime=0)
    arrays = {"x_train": colour, "y_train": labels, "x_test": colour, "y_test": labels}
    vectors = {"words": np.array(["good", "bad"]), "vec": rng.standard_normal((2, 3))}
    glove = "".join(" ".join([word, *map(str, rng.standard_normal(100))]) + "\n" for word in ("good", "bad"))
    idx = [gzip.compress(_idx(grey if "idx3" in name else labels), mtime=0) for name in MNIST]
    text = "glove.6B.100d.txt"
    return {
        "MNIST": Made({f"mnist/{n}-ubyte.gz": c for n, c in zip(MNIST, idx, strict=True)}, data.mnist),
        "CIFAR-10, archive": Made({"cifar10/cifar-10-binary.tar.gz": tar(dict.fromkeys(BATCHES, records))},
                                  data.cifar10, tuple(BATCHES)),
        "CIFAR-10, subset": Made({"cifar10/cifar10_subset.npz": npz(arrays)}, data.cifar10, _npy(arrays)),
        "IMDB, archive": Made({"imdb/aclImdb_v1.tar.gz": tar(reviews)}, data.imdb, tuple(reviews)),
        "IMDB, lines": Made({f"imdb/imdb_{s}.jsonl.gz": line for s in ("train", "test")}, data.imdb),
        "word vectors": Made({"embeddings/mine.npz": npz(vectors)}, lambda **o: data.embeddings("mine", **o),
                             _npy(vectors)),
        "GloVe": Made({"embeddings/glove.6B.zip": zipped({text: glove.encode()})},
                      lambda **o: data.embeddings("glove6B_100d", **o), (text,)),
    }  # fmt: skip


def tar(members: dict[str, bytes]) -> bytes:
    """A ``.tar.gz`` with these members."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive with these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def npz(arrays: dict[str, np.ndarray]) -> bytes:
    """A compressed file of arrays, the same at any time."""
    found = {}
    for name, array in arrays.items():
        np.save(out := io.BytesIO(), array)
        found[f"{name}.npy"] = out.getvalue()
    return zipped(found)


def hole(name: str, size: int) -> bytes:
    """A ``.tar.gz`` of a hundred bytes whose only member is a hole of any size."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[386:434], head[482:495] = bytes(48), b"\0%011o\0" % size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[:512])
    return gzip.compress(bytes(head) + bytes(1024), mtime=0)


def leading_outside(made: Made) -> bytes | None:
    """The last file with one more member, whose name leads out of the folder; None where there are no members."""
    content = made.files[made.last]
    if not made.members:
        return None
    if made.last.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as old:
            return tar({OUTSIDE: b"out"} | {m.name: old.extractfile(m).read() for m in old})  # type: ignore[union-attr]  # files only
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        return zipped({OUTSIDE: b"out"} | {name: old.read(name) for name in old.namelist()})


def with_bit_changed(content: bytes, bit: int) -> bytes:
    """The content with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def same(one: Any, other: Any) -> bool:
    """Whether two loaded data sets hold the same."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def _npy(arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
    return tuple(f"{name}.npy" for name in arrays)


def _idx(array: np.ndarray) -> bytes:
    return b"".join(n.to_bytes(4) for n in (0x800 + array.ndim, *array.shape)) + array.tobytes()
