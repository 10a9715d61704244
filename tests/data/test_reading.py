"""Archives that are damaged in one bit, hold holes, or whose names lead elsewhere."""

import io
import random
import zipfile

import numpy as np
import pytest
from made_data import hole, leading_outside, npz, same, sets, tar, with_bit_changed, zipped

from attnbook.data import DataError, cifar10, imdb
from attnbook.data.reading import arrays_of_npz, files_of_tar

SETS = sets()
of_every_form = pytest.mark.parametrize("name", SETS)


@pytest.fixture
def put(data):
    """Load a made data set with another last file."""
    return lambda name, content=None: SETS[name].read(data, content)


@of_every_form
def test_an_archive_with_one_bit_changed_is_refused_by_name_or_gives_the_same(name, put):
    """Some bits say nothing: a date, a name of the packing program."""
    good, refused = SETS[name].files[SETS[name].last], []
    expected, bits = put(name), random.Random(0).sample(range(8 * len(good)), 60)
    for bit in bits:
        try:
            found = put(name, with_bit_changed(good, bit))
        except DataError as error:
            refused.append(str(error))
        else:
            assert same(expected, found), f"bit {bit}"
    assert len(refused) > 20
    assert all(SETS[name].last in message for message in refused)


@pytest.mark.parametrize(("name", "load"), [("CIFAR-10, archive", cifar10), ("IMDB, archive", imdb)])
def test_a_hole_is_no_file(name, load, put):
    """A hundred bytes once took as much memory as they asked for."""
    with pytest.raises(DataError, match=r"holds 0 bytes|no reviews"):
        put(name, hole(SETS[name].members[0], 1 << 40))


@of_every_form
def test_a_name_that_leads_outside_is_only_a_name(name, put, tmp_path):
    content = leading_outside(SETS[name])
    if content is not None:
        assert same(put(name, content), put(name))
    assert not list(tmp_path.rglob("outside*"))


def test_a_method_that_is_not_known_is_damage(tmp_path):
    content = bytearray(npz({"a": np.arange(3)}))
    content[content.rindex(b"PK\1\2") + 10] ^= 64
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"mine\.npz: damaged.*compression method"):
        arrays_of_npz(tmp_path / "mine.npz", "a")


def test_what_nobody_reads_is_compared_too(tmp_path):
    gz, archive = tmp_path / "a.tar.gz", tmp_path / "a.npz"
    good = tar({"a": b"good", "b": b"bad"})
    gz.write_bytes(with_bit_changed(good, 8 * len(good) - 64))  # of the checksum, which stands behind all files
    np.save(array := io.BytesIO(), np.arange(3))
    archive.write_bytes(zipped({"a.npy": array.getvalue() + b"good"}, zipfile.ZIP_STORED).replace(b"good", b"evil"))
    with pytest.raises(DataError, match=r"a\.tar\.gz: damaged.*CRC"):
        list(files_of_tar(gz, "a".__eq__))
    with pytest.raises(DataError, match=r"a\.npz: damaged.*CRC"):
        arrays_of_npz(archive, "a")


def test_the_made_sets_are_whole(put):
    for name in SETS:
        found = put(name)
        assert found
    assert np.array_equal(put("MNIST").test_labels, np.arange(5))
