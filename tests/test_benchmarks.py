"""The harness of the benchmarks: wrong variants are refused, the table says what was measured."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import case_global_attention_hessian
import numpy as np
import problem
import pytest
import scale
import side_by_side
import variants_torch
from side_by_side import Case, InJax, as_markdown, check, measure

CASE = Case(
    "Sums",
    "The sum of 7 numbers.",
    {"numpy": lambda: np.arange(7).sum(), "loop": lambda: np.array(float(sum(range(7))))},
    tolerance=1e-12,
    aim={"loop": 0.0},
    repeat=3,
)


def test_a_variant_that_computes_something_else_is_refused():
    wrong = Case("Sums", "", CASE.variants | {"wrong": lambda: np.array(22.0)}, tolerance=1e-2, aim={})
    with pytest.raises(RuntimeError, match=r"Sums: wrong differs from ours by 4\.8e-02"):
        check(wrong)


def test_every_variant_is_measured_in_every_round_and_shown():
    measured = measure(CASE, 2)
    assert [len(row["wall_ms"]) for row in measured["rows"].values()] == [2, 2]
    page = as_markdown({"Sums": json.loads(json.dumps(measured))})
    assert "## Sums" in page
    assert "Aim, at least 0 times faster than loop: reached." in page
    assert page.count("\n| ") == 2 + 2


def test_a_slow_variant_runs_in_the_first_round_only_and_a_remark_is_shown():
    case = replace(CASE, once=("loop",), remark=lambda wall: f"Remark on {', '.join(wall)}.")
    measured = json.loads(json.dumps(measure(case, 3)))
    assert [len(row["wall_ms"]) for row in measured["rows"].values()] == [3, 1]
    page = as_markdown({"Sums": measured})
    assert "In the first round only: loop." in page
    assert "\n\nRemark on numpy, loop.\n\n" in page
    assert "Aim, at least 0 times faster than loop: reached." in page


def test_memory_is_that_of_the_run_alone():
    grown = side_by_side.memory(lambda: np.ones(2**23))  # 64 MiB
    assert grown is None or 60 <= grown <= 80


def test_a_yardstick_may_compute_something_else_and_an_aim_below_one_is_a_limit_on_ours():
    case = replace(CASE, variants=CASE.variants | {"other": lambda: np.array(22.0)}, yardsticks=("other",))
    measured = json.loads(json.dumps(measure(replace(case, aim={"other": 1e-9}), 2)))
    page = as_markdown({"Sums": measured})
    assert "Aim, at most 1e+09 times the time of other: reached." in page
    assert "difference to ours zero" in page


def test_a_variant_in_jax_that_cannot_be_measured_is_named():
    case = replace(CASE, in_jax={"jax": InJax(("variants_jax", "Jax"), {}, 3, "sum")})
    measured = json.loads(json.dumps(measure(case, 2)))
    assert list(measured["rows"]) == ["numpy", "loop"]
    assert "Not measured, for want of --jax-python: jax." in as_markdown({"Sums": measured})


def test_a_variant_whose_module_the_other_python_lacks_is_named(monkeypatch):
    monkeypatch.setattr(side_by_side, "provenance", lambda _: {})
    case = replace(CASE, in_jax={"other": InJax(("variants_jax", "Jax"), {}, 3, "sum", needs="no_such_module")})
    measured = json.loads(json.dumps(measure(case, 2, Path(sys.executable))))
    assert "Not measured, for want of --jax-python: other." in as_markdown({"Sums": measured})


def test_the_networks_of_table_1_are_those_of_the_book():
    """Ours draws data, weights and batches itself; the others get the arrays of ``problem.py``."""
    settings = problem.BOOK
    arrays = problem.draw(settings, 3)
    ours, others = (kind(arrays).train(3, "float64")[1] for kind in (variants_torch.Ours, variants_torch.Vmap))
    losses = [problem.held_out_losses(settings, trained) for trained in (ours, others)]
    np.testing.assert_allclose(*losses, rtol=1e-10)


def test_the_minimum_whose_eigenvalues_are_compared_is_the_book_s(monkeypatch):
    small = case_global_attention_hessian.EXPERIMENT.settings("smoke")
    monkeypatch.setattr(case_global_attention_hessian, "BOOK", small)
    minimum = case_global_attention_hessian._Minimum()
    every = minimum.by_decomposition()
    monkeypatch.setattr(case_global_attention_hessian, "COUNT", 3)
    np.testing.assert_allclose(minimum.by_lanczos().values, every[:3], rtol=1e-3)


def test_the_table_of_sizes_is_the_one_that_was_measured():
    stored = json.loads(scale.STORED.read_text(encoding="utf-8"))
    assert set(stored["rows"]) <= set(scale.ROWS)
    assert scale.as_markdown(stored) == (scale.HERE / "scale.md").read_text(encoding="utf-8")


def test_a_row_of_the_table_of_sizes_is_time_memory_and_what_came_out():
    row = scale.measure(scale.IMPORTS)
    assert row["wall"] < 1 < row["memory"]
