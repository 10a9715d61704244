"""Every table cell, figure and theorem of the first paper is in the ledger, if only as not testable."""

import pytest

from attnbook import ledger

SIZES_OF_TABLE_1 = (10_000, 14_000, 16_000, 18_000, 20_000, 50_000)
SIZES_OF_TABLE_2 = (875, 1750, 3500, 5250, 7000, 8750, 13_125, 17_500)
PARTS_OF_THE_PAPER = [
    *(f"GA-T{theorem}" for theorem in range(1, 7)),
    *(f"GA-F{figure}" for figure in range(1, 8)),
    "GA-C1",
    "GA-P1",
    "GA-G1",
    *(f"GA-TAB1-{size}" for size in SIZES_OF_TABLE_1),
    *(f"GA-TAB2-{size}" for size in SIZES_OF_TABLE_2),
]


@pytest.mark.parametrize("part", PARTS_OF_THE_PAPER)
def test_part_of_the_paper_is_in_the_ledger(part):
    assert any(claim.id == part or claim.id.startswith(f"{part}-") for claim in ledger.claims())


@pytest.mark.parametrize(("table", "models"), [("TAB1", 3), ("TAB2", 2)])
def test_cells_of_a_table_carry_the_numbers_of_the_paper(table, models):
    cells = [claim for claim in ledger.claims() if claim.id.startswith(f"GA-{table}-") and claim.id[8:].isdigit()]
    assert cells
    assert all(len(cell.paper_value) == models for cell in cells)
