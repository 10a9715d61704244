"""Devices, scale, threads, progress."""

import numpy as np
import pytest
import torch

from attnbook.core import runtime


@pytest.fixture
def machine(monkeypatch):
    """Call to say which accelerators this machine has."""

    def has(*, cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


@pytest.mark.parametrize(
    ("has", "expected"),
    [({}, "cpu"), ({"mps": True}, "mps"), ({"cuda": 1}, "cuda"), ({"cuda": 1, "mps": True}, "cuda")],
)
def test_default_device_is_the_first_of_cuda_mps_and_cpu(has, expected, machine):
    machine(**has)
    assert runtime.device().type == expected


@pytest.mark.parametrize(("has", "expected"), [({}, "cpu"), ({"mps": True}, "cpu"), ({"cuda": 1, "mps": True}, "cuda")])
def test_the_cpu_takes_the_place_of_mps_where_float64_is_needed(has, expected, machine):
    machine(**has)
    assert runtime.double_device().type == expected
    assert runtime.double_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", torch.device("cuda", 0)])
def test_a_device_that_is_there_can_be_named(name, machine):
    machine(cuda=2)
    assert runtime.device(name) == torch.device(name)


@pytest.mark.parametrize("name", ["banana", "tpu", "meta", "", "cuda", "cuda:0", "mps", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name, machine):
    machine()
    with pytest.raises(ValueError, match=f"^device: '{name}' is not available here; expected one of cpu$"):
        runtime.device(name)


def test_a_gpu_beyond_the_last_is_refused(machine):
    machine(cuda=2)
    with pytest.raises(ValueError, match="device: 'cuda:2'"):
        runtime.device("cuda:2")


def test_scale_is_book_unless_the_environment_says_otherwise(monkeypatch):
    assert runtime.size() == "book"
    monkeypatch.setenv("ATTNBOOK_SIZE", "smoke")
    assert runtime.size() == "smoke"


@pytest.mark.parametrize("value", ["banana", "", "Book"])
def test_unknown_scales_are_refused_by_name(value, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_SIZE", value)
    with pytest.raises(ValueError, match=f"ATTNBOOK_SIZE: got '{value}', expected one of smoke, book, full"):
        runtime.size()


@pytest.fixture
def using():
    """Call to choose; afterwards nothing is chosen."""
    yield runtime.use
    runtime.use()


def test_what_was_chosen_last_holds_until_something_else_is(using, machine, monkeypatch):
    machine(cuda=2)
    monkeypatch.setenv("ATTNBOOK_SIZE", "smoke")
    using(size="full", device="cuda:1")
    assert (runtime.size(), runtime.device()) == ("full", torch.device("cuda:1"))
    using(device="cpu")
    assert (runtime.size(), runtime.device()) == ("smoke", torch.device("cpu"))
    using()
    assert (runtime.size(), runtime.device()) == ("smoke", torch.device("cuda"))


def test_a_device_that_a_call_names_comes_before_the_chosen_one(using, machine):
    machine(cuda=1)
    using(device="cuda")
    assert runtime.device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": "Full"}, "^size: got 'Full', expected one of smoke, book, full, auto$"),
        ({"size": "large"}, "^size: 'large' is now 'full'$"),
        ({"scale": "book"}, "^scale: expected size or device, scale is now size$"),
        ({"size": "full", "device": "cuda"}, "^device: 'cuda' is not available here; expected one of cpu$"),
    ],
)
def test_an_impossible_choice_is_refused_and_changes_nothing(wrong, message, using, machine):
    machine()
    using(size="smoke")
    with pytest.raises(ValueError, match=message):
        using(**wrong)
    assert (runtime.size(), runtime.device()) == ("smoke", torch.device("cpu"))


def test_threads_are_put_back_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), runtime.threads(before + 1):  # noqa: PT012  # the error has to come from within
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_count_of_numpy_is_a_count():
    with runtime.threads(np.int64(1)):
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_impossible_thread_counts_are_refused_by_name(count):
    with pytest.raises(ValueError, match="count"), runtime.threads(count):
        pass


def test_progress_bar_is_silent_where_there_is_no_terminal(capfd):
    with runtime.progress_bar("training") as progress:
        assert progress is None
    assert capfd.readouterr() == ("", "")


def test_progress_bar_draws_on_a_terminal_and_only_on_stderr(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with runtime.progress_bar("training") as progress:
        progress(3, 7)
    out, err = capsys.readouterr()
    assert out == ""
    assert "training" in err


def test_equal_parts_tell_their_progress_together():
    seen = []
    for number in range(3):
        runtime.share(lambda *told: seen.append(told), number, 3)(2, 5)
    assert seen == [(2, 15), (7, 15), (12, 15)]
    assert runtime.share(None, 0, 3) is None
