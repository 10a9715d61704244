"""The list of files, fetching, and `attnbook data`."""

import json

import pytest
from typer.testing import CliRunner

from attnbook import cli
from attnbook.data import DOWNLOADS, DataError, available, fetch
from attnbook.data.files import KNOWN

GOOD = b"good" * 1009
PATH = "imdb/aclImdb_v1.tar.gz"


@pytest.fixture
def call():
    def call(*arguments, code=0):
        done = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, ["data", *arguments])
        assert done.exit_code == code, done.output
        return done

    return call


def states():
    return {(entry.path, entry.place): entry.state for entry in available()}


def test_an_empty_machine_could_download_everything():
    assert {entry.place for entry in available()} == {"download"}
    assert states()[PATH, "download"] == "fetch imdb"
    assert len(available()) == 7


def test_every_file_says_where_it_is_and_whether_it_is_right(server, cache, data, write):
    server.offer(PATH, GOOD)
    write(cache, PATH, GOOD)
    write(data, PATH, b"mine")
    write(data, "embeddings/mine.npz", b"vectors")
    write(data, "cifar10/cifar10_subset.npz", b"mine too")
    assert {key: state for key, state in states().items() if key[1] != "download"} == {
        (PATH, "ATTNBOOK_DATA"): "own file",
        ("cifar10/cifar10_subset.npz", "ATTNBOOK_DATA"): "own file",
        ("embeddings/mine.npz", "ATTNBOOK_DATA"): "own file",
        (PATH, "cache"): "verified",
    }
    write(data, PATH, b"evil" * 1009)
    write(cache, PATH, GOOD[:-1])
    assert states()[PATH, "ATTNBOOK_DATA"] == states()[PATH, "cache"] == "damaged"


def test_fetch_downloads_once(server, cache):
    server.offer(PATH, GOOD)
    assert fetch("imdb") == fetch("imdb") == [cache / PATH]
    assert len(server.asked) == 1


def test_fetch_says_why_it_cannot(server, monkeypatch, cache, write):
    server.offer(PATH, GOOD, 404)
    with pytest.raises(DataError, match=r"imdb: .* status 404; put the files into ATTNBOOK_DATA or try again later"):
        fetch("imdb")
    monkeypatch.setenv("ATTNBOOK_OFFLINE", "1")
    with pytest.raises(DataError, match=r"imdb: downloads are switched off; put .* or unset ATTNBOOK_OFFLINE"):
        fetch("imdb")
    write(cache, PATH, GOOD)
    assert fetch("imdb") == [cache / PATH]
    with pytest.raises(DataError, match="name: got 'banana', expected one of mnist, imdb, cifar10, glove6B_100d"):
        fetch("banana")


def test_what_can_be_fetched_has_an_address():
    assert all(KNOWN[path].url for paths in DOWNLOADS.values() for path in paths)


def test_the_command_lists_in_80_columns(call, cache, data, write):
    write(data, "embeddings/mine.npz", b"vectors")
    shown = call().stdout
    for entry in available():
        (line,) = [line for line in shown.splitlines() if line.split()[:2] == [entry.path, entry.place]]
        assert line.strip().endswith(entry.state)
    assert "downloads: on" in shown
    assert json.loads(call("--json").stdout)[0] == {
        "path": "embeddings/mine.npz", "place": "ATTNBOOK_DATA", "size": 7, "state": "own file"
    }  # fmt: skip


def test_the_command_fetches(call, server, cache):
    server.offer(PATH, GOOD)
    assert call("fetch", "imdb").stdout == f"verified {cache / PATH}\n"
    assert call("fetch", "banana", code=2).stderr.startswith("attnbook: name: got 'banana'")


def test_the_command_trains_on_real_reviews_only(call, data, write, cache):
    import gzip

    assert "IMDB: not in ATTNBOOK_DATA" in call("train-vectors", code=2).stderr
    assert not (cache / "embeddings").exists()
    for split, label, rating in (("train", 0, 1), ("unsup", -1, 0)):
        text = "one two three four five six seven " * 3
        line = json.dumps({"id": 0, "label": label, "rating": rating, "text": text})
        write(data, f"imdb/imdb_{split}.jsonl.gz", gzip.compress(line.encode()))
    assert call("train-vectors", "--dimension", "3").stdout == (
        f"7 words, 3 components; stored {cache / 'embeddings/imdb_ppmi_svd_3d.npz'}\n"
    )
    assert "expected less than the 7 words" in call("train-vectors", code=2).stderr


@pytest.mark.parametrize("arguments", [[], ["fetch", "mnist"], ["train-vectors"]])
def test_bad_settings_are_one_line_on_stderr(arguments, call, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_OFFLINE", "maybe")
    (line,) = call(*arguments, code=2).stderr.splitlines()
    assert line == "attnbook: ATTNBOOK_OFFLINE: got 'maybe', expected 1 or 0"
