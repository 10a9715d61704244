"""Tables: escaped, and equal on every machine but for what is marked."""

import re

import pytest

from attnbook.core import runtime
from attnbook.core.tables import Measured, Table, cost, provenance, settings
from attnbook.registry import experiment


def without_measured(html):
    return re.sub(r'<span class="measured">[^<]*</span>', "*", html)


def test_cells_heads_and_caption_are_escaped():
    html = Table(["a < b"], [["<i>"], [Measured("<2>", before="&")]], "x > 1")._repr_html_()
    assert "<th>a &lt; b</th>" in html
    assert "<td>&lt;i&gt;</td>" in html
    assert '<td>&amp;<span class="measured">&lt;2&gt;</span></td>' in html
    assert "<p>x &gt; 1</p>" in html


def test_columns_can_stand_in_groups():
    html = Table(["a", "b", "c"], [["1", "2", "3"]], "x", groups=[("", 1), ("<two>", 2)])._repr_html_()
    assert '<tr><th colspan="1"></th><th colspan="2">&lt;two&gt;</th></tr>\n<tr><th>a</th>' in html


def test_measured_text_is_marked_and_nothing_else():
    one, other = (Table(["loss"], [[Measured(text, before="ours ")]], "c")._repr_html_() for text in ("0.1", "0.2"))
    assert one != other
    assert without_measured(one) == without_measured(other)
    assert "ours *" in without_measured(one)


@pytest.mark.parametrize("caption", ["Costs < 1.", Measured("0.5 <", before="Costs < 1.")])
def test_a_table_in_text_is_the_caption_that_does_not_vary(caption):
    table = Table(["loss"], [["0.1"]], caption)
    assert repr(table) == "Table: Costs < 1."
    assert "Costs &lt; 1." in without_measured(table._repr_html_())
    assert "0.5" not in without_measured(table._repr_html_())


@pytest.mark.parametrize("make", [lambda r: cost(r, 7), provenance], ids=["cost", "provenance"])
def test_time_machine_and_versions_are_marked_as_measured(make, smoke_results):
    result = smoke_results["global_attention.sample_complexity"]
    origin = result.attrs["provenance"]
    html, stable = make(result)._repr_html_(), without_measured(make(result)._repr_html_())
    assert f"{origin['peak_memory_mib']}" in html
    assert not re.search(r"\d\.\d", stable)
    assert f"<td>{origin['device']}</td>" not in stable


def test_settings_have_one_row_each(smoke_results):
    """Those of the data, whatever size the session has."""
    runtime.use(size="full")
    try:
        html = settings(smoke_results["global_attention.sample_complexity"])._repr_html_()
    finally:
        runtime.use()
    assert html.count("<tr>") == len(vars(experiment("global_attention.sample_complexity")())) + 1
    assert "<td>sizes</td><td>30, 40, 50, 60, 70, 80</td>" in html
