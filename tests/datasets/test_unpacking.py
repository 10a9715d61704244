"""Archives that are damaged in one bit, that promise too much, or whose names lead elsewhere."""

import gzip
import random
import zipfile

import numpy as np
import pytest
from made_data import bomb, hole, leading_outside, same, sets, with_bit_changed, zipped

from attnbook.datasets import DataError, cifar10, imdb, unpacking
from attnbook.datasets.unpacking import in_zip, unpacked

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


@of_every_form
def test_a_bomb_is_refused_by_name(name, put):
    message = rf"{SETS[name].last}: unpacks to more than 100 times its size, as no data do; get it again"
    with pytest.raises(DataError, match=message):
        put(name, bomb(SETS[name], unpacking.SMALL + 1))


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


def test_small_files_may_unpack_to_any_multiple(tmp_path):
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with unpacked(tmp_path / "zeros.gz") as content:
        assert content.read() == bytes(1 << 20)


def test_a_method_that_is_not_known_is_damage(tmp_path):
    content = bytearray(zipped({"a": b"good"}))
    content[content.rindex(b"PK\1\2") + 10] ^= 64
    (tmp_path / "mine.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"mine\.zip: damaged.*compression method"), in_zip(tmp_path / "mine.zip", "a"):
        pass


def test_what_nobody_reads_is_compared_too(tmp_path):
    gz, archive = tmp_path / "a.gz", tmp_path / "a.zip"
    gz.write_bytes(with_bit_changed(good := gzip.compress(b"good"), 8 * len(good) - 64))  # of the checksum
    archive.write_bytes(zipped({"a": b"good"}, zipfile.ZIP_STORED).replace(b"good", b"evil"))
    with pytest.raises(DataError, match=r"a\.gz: damaged.*CRC"), unpacked(gz):
        pass
    with pytest.raises(DataError, match=r"a\.zip: damaged.*CRC"), in_zip(archive, "a"):
        pass


def test_the_made_sets_are_whole(put):
    for name in SETS:
        found = put(name)
        assert found
    assert np.array_equal(put("MNIST").test_labels, np.arange(5))
