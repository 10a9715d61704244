"""What figures are drawn with: lines are those of the data, whatever these are."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnbook.lab import EXPERIMENTS, load_script
from attnbook.show import COLORS, Look, curves, looks_of, own_lines, settings, show_source, style

KNOWN = {2: Look("two heads", "#123456", "-", "o")}


@pytest.fixture
def axes():
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def values(heads=(2, 5, 7), seeds=3):
    numbers = np.random.default_rng(0).uniform(1, 2, (4, seeds, len(heads)))
    coords = {"step": [1.0, 2.0, 4.0, 8.0], "seed": range(seeds), "heads": list(heads)}
    return xr.DataArray(numbers, coords, ("step", "seed", "heads"))


def test_every_entry_of_the_data_is_a_line_through_its_medians(axes):
    data = values()
    curves(axes, data, "step", "heads", KNOWN, "{} heads")
    assert [line.get_label() for line in axes.lines] == ["two heads", "5 heads", "7 heads"]
    for line, heads in zip(axes.lines, (2, 5, 7), strict=True):
        middle = np.sort(data.sel(heads=heads).transpose("seed", "step").values, axis=0)[1]
        np.testing.assert_array_equal(line.get_ydata(), middle)
    assert len(axes.collections) == 3
    assert axes.lines[0].get_color() == "#123456"
    assert len({line.get_color() for line in axes.lines}) == 3


def test_a_single_line_needs_no_seeds_and_no_hue(axes):
    data = values().isel(seed=0, heads=0, drop=True)
    curves(axes, data, "step", label="loss")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), data.values)
    assert axes.lines[0].get_label() == "loss"


def test_dimensions_that_would_be_drawn_over_each_other_are_named(axes):
    with pytest.raises(ValueError, match=r"data: expected the dimensions \['step'\], and seed, got .*heads"):
        curves(axes, values(), "step")


def test_more_entries_than_colours_still_have_looks():
    found = looks_of(range(len(COLORS) + 1), KNOWN)
    assert len(found) == len(COLORS) + 1
    assert found[2].label == "two heads"
    assert found[0].label == "0"
    assert looks_of(["GELU"])["GELU"].label == "GELU"


def test_lines_of_the_reader_are_named_as_theirs(axes):
    own_lines(axes, {"GELU": {1: 0.5, 16: 0.25}})
    with pytest.raises(TypeError, match=r"yours: expected a dictionary of abscissa to value for .GELU., got 0.5"):
        own_lines(axes, {"GELU": 0.5})
    own_lines(axes, None)
    assert [line.get_label() for line in axes.lines] == ["yours: GELU"]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[1, 0.5], [16, 0.25]])


@pytest.fixture
def walk():
    load_script(Path(__file__).with_name("lab_script.py"))
    return EXPERIMENTS["toy.walk"]


def test_settings_that_were_changed_are_marked(walk, tmp_path):
    data = walk.run("smoke", rate=0.25, keep=tmp_path)
    rows = {row[0]: row[1:] for row in settings(walk, data).rows}
    assert rows["rate"][:2] == ["0.25", "changed"]
    assert {row[1] for row in settings(walk).rows if row[1] == "changed"} == set()


def test_source_is_that_of_the_function(walk, capsys):
    show_source(walk)
    assert "def walk(" in capsys.readouterr().out
