"""Every theorem, lemma, table and figure of five papers is in the ledger, or was dropped with a reason."""

import re

import pytest

from attnbook import ledger

# Theorems, lemmas, equations, figures; a word where the paper has no number.
OTHER_PAPERS = {
    "MH": "L1 L2 P1 P2 P3 P4 C1 T1 T2 ST A3 E8 ORD 53 APP B13",
    "MD": "L4 L12 L13a L13b L14 L15 L16 L17 L18 L19 L20 L21 L22 L23 L24 L25 L26 L27 L28 L29 L30 "
    "D1 dir local rate RP joint exact cross sparse 2d imdb hist tok vit",
    "SN": "GRAD NTK INIT B1 B2 L5.1 5.3L 5.3W 5.3G T4.2 C4.3 TAB1 D1 D3 E1 E5 F1 F2 A6 T6 G3 ATT",
    "PC": "A1 A2 A3 A4 L5 L8 L9 L10 L11 L14 T1 T2 T4 T5 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11",
}
PARTS_OF_THE_PAPERS = [
    *(f"GA-T{theorem}" for theorem in range(1, 7)),
    *(f"GA-F{figure}" for figure in range(1, 8)),
    "GA-C1",
    "GA-P1",
    "GA-G1",
    "GA-TAB1",
    "GA-TAB2",
    *(f"{prefix}-{part}" for prefix, parts in OTHER_PAPERS.items() for part in parts.split()),
]


def test_every_part_of_a_paper_is_in_the_ledger():
    ids = [one for claim in ledger.claims() for one in (claim.id, *claim.merged)]
    ids += [one for paper in ledger.papers() for one in paper.dropped]
    found = {part for part in PARTS_OF_THE_PAPERS for one in ids if re.match(rf"{re.escape(part)}(?![0-9a-zA-Z])", one)}
    assert [part for part in PARTS_OF_THE_PAPERS if part not in found] == []


@pytest.mark.parametrize(("table", "cells"), [("GA-TAB1", 6 * 3), ("GA-TAB2", 8 * 2)])
def test_a_table_carries_the_numbers_of_the_paper(table, cells):
    assert len(ledger.claim(table).paper_value) == cells
