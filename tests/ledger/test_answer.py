"""What `attnbook show` answers: ten lines that fit the terminal, or all of it; of former claims what became of them."""

import resource
import subprocess
import sys

import pytest

from attnbook import ledger
from attnbook.ledger.plain import plain


def test_no_formula_is_left_as_it_is_typed():
    texts = [text for c in ledger.claims() for text in (c.statement, c.where, c.why, c.note, c.trial, c.line)]
    assert [text for text in texts if {"\\", "$", "`", "{"} & set(plain(text))] == []


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("claim", ["MH-H-noise", "MD-L23", "GA-TAB1", "SN-GRAD"])
def test_a_claim_fits_the_terminal_and_no_word_or_formula_is_broken(claim, width):
    shown = ledger.answer(claim, width=width)
    assert "\xa0" not in shown
    lines = [line.split() for line in shown.split("\n")]
    words = plain(ledger.claim(claim).statement).split(" ")  # a short formula is one, its blanks are no places to break
    assert all(
        any(word.split("\xa0") == line[i : i + word.count("\xa0") + 1] for line in lines for i in range(len(line)))
        for word in words
    )
    longest = 13 + max(map(len, [*words, *shown.split()]))
    assert all(len(line) <= max(width, longest) for line in shown.split("\n"))


def test_the_lines_say_what_where_how_it_came_out_and_what_to_run():
    names = [line[:13].strip() for line in ledger.answer("MH-H-noise").split("\n") if line[0] != " "]
    assert names[-8:] == ["says", "place", "book size", "full size", "fresh seeds", "read", "run", "more"]
    shown = " ".join(ledger.answer("MH-H-noise", width=200).split())
    assert "book size reproduced, 5 seeds: error 1 = 0 [0, 0]; " in shown
    assert "read chapters/multi_head/how_many_heads.ipynb run attnbook run multi_head.noise_and_heads" in shown
    assert "rule error_1 <= 0.01 and " in " ".join(ledger.answer("MH-H-noise", full=True, width=200).split())


def test_where_the_sizes_differ_the_one_that_counts_says_so():
    book, full = (line for line in ledger.answer("GA-TAB1", width=2000).split("\n") if line[4:9] == " size")
    assert book.startswith("book size    reproduced in trend, 5 seeds: attention 10000 = ")
    assert full.startswith("full size    not reproduced, at the paper's size: attention 10000 = ")
    assert full.endswith("and 7 more. This verdict counts.")
    assert "counts" not in book


def test_what_has_no_rule_says_how_it_is_checked_or_why_it_is_not():
    assert "\nidentity     Algebra: tests compare gradient " in ledger.answer("SN-GRAD")
    assert "\nnot testable A statement on every stationary point" in ledger.answer("GA-T1-all")


def test_a_former_claim_says_what_became_of_it():
    assert ledger.answer("SN-6.DIGITS").startswith("SN-6.DIGITS was dropped, because: its experiment")
    first, second, *_ = ledger.answer("MH-H.6").split("\n")
    assert first == "MH-H.6 is part of MH-COLLAPSE now."
    assert second == "= MH-COLLAPSE: identity"
    for paper in ledger.papers():
        for one in paper.dropped:
            assert one in ledger.answer(one)


def test_an_unknown_claim_comes_with_the_nearest_ones_former_ones_too():
    with pytest.raises(ledger.LedgerError, match="did you mean MH-H-noise, "):
        ledger.answer("mh-h-noise")
    with pytest.raises(ledger.LedgerError, match=r"did you mean SN-6\.DIGITS"):
        ledger.answer("SN-6.DIGIT")


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        (r"with $\eta=\frac12$, `share`", "with η = 1/2, share"),
        (r"$\frac{a+b}{2c}\le\sqrt{2n}$", "(a+b)/(2c) ≤ √(2n)"),
        (r"$\log\frac{1}{x}$ and $e^{18B}\log n$", "log(1/x) and e^(18B) log n"),
        (r"$\|\hat W-\tilde W\|_F^2$", "‖Ŵ-W̃‖_F^2"),
        (r"$\mathbb E[\alpha_1^p\mid x_1]$", "E[α_1^p|x_1]"),
        (r"$W_{mm}^\top$, $x_{i,j}$, $g_0(1/K)$", "W_mmᵀ, x_(i,j), g_0(1/K)"),
        ("50 % of $n$", "50 % of n"),
    ],
)
def test_formulas_are_read_in_plain_text(markdown, text):
    assert plain(markdown).replace("\xa0", " ") == text


def test_reading_the_ledger_needs_no_torch_and_half_a_second():
    """Of processor time, in a process of its own; the best of three, since other tests run beside it."""
    code = "import sys; from attnbook import ledger; ledger.answer('GA-TAB1'); print(*sys.modules)"
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert not {"torch", "scipy", "xarray", "numpy", "pandas"} & set(done.stdout.split())
    assert min(times) < 0.5
