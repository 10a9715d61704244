"""The tool that runs the chapters as Colab does sees what is wrong, and hides what Colab has not."""

import gc

import colab
import nbformat
import pytest

VIEW = {colab.VIEW: {"model_id": "1"}}
SLIDER = {"text/html": '<div class="attnbook-slider">'}


def ran(*outputs):
    """The cells of a notebook whose second one has these outputs."""
    book = nbformat.v4
    return [book.new_markdown_cell("words"), book.new_code_cell("f()", outputs=list(outputs))]


def shown(data):
    return nbformat.v4.new_output("display_data", data=data)


@pytest.mark.parametrize(
    "output",
    [
        nbformat.v4.new_output("stream", name="stdout", text="0.5"),
        shown({"text/html": "a table"}),
        shown(SLIDER | VIEW),
    ],
)
def test_what_a_chapter_shows_is_no_fault(output):
    assert colab.fault(ran(output)) == ""


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (nbformat.v4.new_output("error", ename="E", evalue="e", traceback=["line 1", "E: e"]), "line 1\nE: e"),
        (nbformat.v4.new_output("stream", name="stderr", text="DeprecationWarning"), "DeprecationWarning"),
        (shown(SLIDER), "a slider without its widget"),
    ],
)
def test_an_error_a_warning_and_a_dead_slider_are_named_with_their_cell(output, says):
    fine = nbformat.v4.new_output("stream", name="stdout", text="0.5")
    assert colab.fault(ran(fine, output)) == f"cell 2 of 2\nf()\n{says}"


def test_a_chapter_sees_no_setting_of_the_caller_and_no_network(monkeypatch, tmp_path):
    for name in ("ATTNBOOK_SIZE", "PYTHONPATH", "JUPYTER_PATH", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    seen = colab.surroundings(tmp_path)
    assert seen.keys() == {"PATH", "HOME", "LANG", "OMP_NUM_THREADS"} | {
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
    }
    assert seen["HOME"] == str(tmp_path)
    assert seen["PATH"].startswith(str(colab.PLACE))


def test_the_sliders_of_a_chapter_are_moved_and_a_stuck_one_is_named(capsys):
    """The code that the tool adds to each chapter, on sliders of this test."""
    import matplotlib.pyplot as plt

    from attnbook.core.widgets import explore

    gc.collect()  # sliders of other tests
    explorer = explore(lambda n: plt.figure(figsize=(n, 1)), text=lambda n: f"{n} wide", n=[1, 2])
    exec(colab.MOVE, {})
    assert "sliders moved" in capsys.readouterr().out
    assert explorer.widget.children[0].value == 2
    explorer.widget.children[0].unobserve_all()
    with pytest.raises(AssertionError, match="n: the same picture and words"):
        exec(colab.MOVE, {})
