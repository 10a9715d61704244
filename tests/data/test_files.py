"""Where data come from: the order of the places, and what happens when one of them fails."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pooch
import pytest

from attnbook.core.places import cache_folder
from attnbook.data import DataError, data_folder, downloading, files
from attnbook.data.files import obtain
from attnbook.data.reading import readable

ONE, TWO = "mnist/one.bin", "mnist/two.bin"
GOOD, BAD = b"good" * 5003, b"evil" * 5003


class Obtained(NamedTuple):
    content: list[bytes]
    source: str
    stand_in: bool


def contents(*paths):
    return [path.read_bytes() for path in paths]


def get(*paths, download=True, stand_in=lambda: ([b"made"], "something made")):
    return Obtained(*obtain("SET", {paths or (ONE,): contents}, download=download, stand_in=stand_in))


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_places_are_asked_in_order(server, cache, data, write):
    server.offer(ONE, GOOD)
    downloaded, cached = get(), get()
    assert downloaded.content == cached.content == [GOOD]
    assert downloaded.source == "SET, downloaded from 127.0.0.1 (checksums verified)"
    assert cached.source == "SET, from the user cache (checksums verified)"
    assert server.asked == [f"/{ONE}"]
    assert names_in(cache) == [ONE]
    write(data, ONE, GOOD)
    assert get().source == "SET, from ATTNBOOK_DATA (checksums verified)"
    write(data, ONE, b"mine")
    assert (get().content, get().source) == (
        [b"mine"], "SET, from ATTNBOOK_DATA (files of your own, read without a checksum)"
    )  # fmt: skip
    assert server.asked == [f"/{ONE}"]


def test_the_first_whole_form_is_taken_and_a_form_without_a_checksum_is_never_fetched(cache, write):
    write(cache, "embeddings/mine.npz", b"mine")
    other, mine = ("embeddings/other.npz",), ("embeddings/mine.npz",)
    assert obtain("SET", {other: contents, mine: contents}, download=True, stand_in=None) == (
        [b"mine"], "SET, from the user cache (files of your own, read without a checksum)", False
    )  # fmt: skip
    assert obtain("SET", {other: contents}, download=True, stand_in=lambda: ([], "none")) == (
        [], "stand-in: none (there is nothing to download)", True
    )  # fmt: skip


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_no_byte_is_fetched_where_downloads_are_switched_off(by, server, monkeypatch, cache):
    server.offer(ONE, GOOD)
    if by == "environment":
        monkeypatch.setenv("ATTNBOOK_OFFLINE", "1")
    found = get(download=by == "environment")
    assert (found.content, found.stand_in) == ([b"made"], True)
    assert found.source == "stand-in: something made (downloads are switched off)"
    assert server.asked == []
    assert not cache.exists()


@pytest.mark.parametrize(
    ("answer", "reason", "requests"),
    [
        (404, "the download from 127.0.0.1 failed: status 404", 2),
        (503, "the download from 127.0.0.1 failed: status 503", 2),
        ((GOOD,), "the download from 127.0.0.1 failed: ChunkedEncodingError", 2),
    ],
)
def test_a_download_that_fails_twice_gives_the_stand_in_and_leaves_nothing(answer, reason, requests, server, cache):
    server.offer(ONE, GOOD, answer)
    found = get()
    assert found.stand_in
    assert found.source == f"stand-in: something made ({reason})"
    assert len(server.asked) == requests
    assert names_in(cache) == []
    with pytest.raises(DataError, match=r"SET: not in ATTNBOOK_DATA.*ATTNBOOK_DATA to a folder with mnist/one.bin"):
        get(stand_in=None)


@pytest.mark.parametrize("first", [(GOOD,), BAD, 503], ids=["broken off", "wrong", "busy"])
def test_a_download_is_tried_twice(first, server, cache):
    server.offer(ONE, GOOD, first, GOOD)
    assert get().content == [GOOD]
    assert len(server.asked) == 2
    assert names_in(cache) == [ONE]


def test_without_a_network_the_stand_in_says_so(monkeypatch):
    away = files.File(1, "0" * 64, "https://example.org/one.bin")
    monkeypatch.setitem(files.KNOWN, ONE, away)
    assert get().source == "stand-in: something made (example.org was not reached)"
    with pytest.raises(DataError, match=r"example\.org was not reached"):
        get(stand_in=None)


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(server, cache):
    server.offer(ONE, GOOD, BAD)
    with pytest.raises(DataError, match=r"127\.0\.0\.1 twice sent a file with a wrong SHA-256; nothing was kept"):
        get()
    assert len(server.asked) == 2
    assert names_in(cache) == []


@pytest.mark.parametrize("damaged", [BAD, GOOD[:-1], b""], ids=["changed", "cut off", "empty"])
def test_a_damaged_file_in_the_cache_is_fetched_again(damaged, server, cache, write):
    server.offer(ONE, GOOD)
    write(cache, ONE, damaged)
    assert get().content == [GOOD]
    assert (cache / ONE).read_bytes() == GOOD
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "download", "message"),
    [
        (GOOD, False, "one.bin: damaged .* downloads are switched off; delete it or allow downloads"),
        (404, True, "one.bin: damaged .* could not be fetched again: .* status 404; delete it"),
        (BAD, True, "twice sent a file with a wrong SHA-256"),
    ],
)
def test_a_damaged_file_that_cannot_be_mended_is_an_error(answer, download, message, server, cache, write):
    server.offer(ONE, GOOD, answer)
    write(cache, ONE, BAD)
    with pytest.raises(DataError, match=message):
        get(download=download)
    assert names_in(cache) == [ONE]


def test_a_half_filled_cache_is_completed(server, cache, write):
    server.offer(ONE, GOOD)
    server.offer(TWO, BAD)
    write(cache, TWO, BAD)
    assert get(ONE, TWO).content == [GOOD, BAD]
    assert server.asked == [f"/{ONE}"]


def test_an_interrupted_download_leaves_nothing(server, cache, monkeypatch):
    server.offer(ONE, GOOD)

    def interrupt(url, file, _):
        with open(file, "wb") as part:
            part.write(GOOD[:7])
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch, "HTTPDownloader", lambda *_, **__: interrupt)
    with pytest.raises(KeyboardInterrupt):
        get()
    assert names_in(cache) == []


def test_two_downloads_at_once_both_end_whole(server, cache, monkeypatch):
    def a_moment_late(path, **_):
        raise FileExistsError(17, "File exists", path)

    monkeypatch.setattr(pooch.core.os, "makedirs", a_moment_late)
    server.offer(ONE, GOOD)
    with ThreadPoolExecutor(2) as two:
        first, second = two.map(lambda _: get(), range(2))
    assert first.content == second.content == [GOOD]
    assert names_in(cache) == [ONE]


def test_pooch_stays_silent_and_keeps_its_level(server, capfd):
    level = pooch.get_logger().level
    server.offer(ONE, GOOD, 503, GOOD)
    get()
    assert tuple(capfd.readouterr()) == ("", "")
    assert pooch.get_logger().level == level


def test_a_terminal_sees_the_progress(server, monkeypatch):
    from contextlib import contextmanager

    told = []

    @contextmanager
    def bar(title):
        yield lambda done, total: told.append((title, done, total))

    monkeypatch.setattr(downloading, "progress_bar", bar)
    server.offer(ONE, GOOD)
    get()
    assert set(told) == {("one.bin", len(GOOD), len(GOOD))}


@pytest.mark.parametrize("missing", ["pooch", "requests"])
def test_a_machine_without_pooch_uses_the_data_folder(missing, server, data, write, monkeypatch):
    server.offer(ONE, GOOD)
    monkeypatch.setitem(sys.modules, missing, None)
    assert get().source == f"stand-in: something made ({missing} is not installed, which downloads need)"
    write(data, ONE, GOOD)
    assert get().content == [GOOD]


def test_importing_touches_no_file_and_no_network(tmp_path):
    code = "import socket; socket.socket.connect = None; import attnbook.data"
    options = {"env": {"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}, "check": True}
    subprocess.run([sys.executable, "-c", code], **options)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_gives_the_stand_in_and_says_so(server, cache):
    server.offer(ONE, GOOD)
    cache.write_text("in the way", encoding="utf-8")
    found = get()
    assert found.stand_in
    assert "(the cache cannot be written: " in found.source
    assert found.source.endswith("; set ATTNBOOK_CACHE to another folder)")


def test_a_damaged_known_file_of_the_data_folder_is_an_error(server, data, write):
    server.offer(ONE, GOOD)
    write(data, ONE, BAD)
    with pytest.raises(DataError, match=r"data/mnist/one.bin: damaged .* copy it there again"):
        get()


def test_half_a_set_in_the_data_folder_is_an_error(data, write):
    write(data, ONE, GOOD)
    with pytest.raises(DataError, match=r"ATTNBOOK_DATA: mnist/two.bin missing beside the other files"):
        get(ONE, TWO)


@pytest.mark.parametrize("content", [None, "a file"])
def test_a_data_folder_that_is_none_is_an_error(content, tmp_path, monkeypatch):
    place = tmp_path / "nowhere"
    if content:
        place.write_text(content, encoding="utf-8")
    monkeypatch.setenv("ATTNBOOK_DATA", str(place))
    with pytest.raises(DataError, match=r"ATTNBOOK_DATA: no folder .*nowhere'; name an existing folder or unset"):
        get()


@pytest.mark.parametrize("closed", ["data", "mnist"])
def test_a_data_folder_without_permission_is_an_error(closed, data, write, monkeypatch):
    write(data, ONE, GOOD)
    monkeypatch.setattr(files.os, "access", lambda path, mode: path.name != closed)
    with pytest.raises(DataError, match=f"ATTNBOOK_DATA: no permission to read .*{closed}'"):
        get()


def test_a_file_without_permission_is_an_error(data, write, monkeypatch):
    write(data, ONE, GOOD)

    def refuse(path):
        with readable(path):
            raise PermissionError

    with pytest.raises(DataError, match=r"one.bin: no permission to read it"):
        obtain("SET", {(ONE,): refuse}, download=False, stand_in=None)


def test_folders_follow_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNBOOK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attnbook"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "attnbook"
    monkeypatch.setenv("ATTNBOOK_DATA", "~")
    assert data_folder() == tmp_path
    monkeypatch.setenv("ATTNBOOK_DATA", "")
    assert data_folder() is None


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_the_switch_for_downloads(value, expected, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_OFFLINE", value)
    assert files.offline() is expected
    monkeypatch.setenv("ATTNBOOK_OFFLINE", "yes")
    with pytest.raises(DataError, match="ATTNBOOK_OFFLINE: got 'yes', expected 1 or 0"):
        get()


def test_every_known_file_has_a_checksum_and_a_place_of_its_own():
    for path, file in files.KNOWN.items():
        assert path.split("/")[0] in ("mnist", "imdb", "cifar10", "embeddings")
        assert len(bytes.fromhex(file.sha256)) == 32
        assert not file.url or file.url.startswith("https://")
    assert len({file.sha256 for file in files.KNOWN.values()}) == len(files.KNOWN)
