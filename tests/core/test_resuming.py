"""Seeds one after the other: order, kept parts, progress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from attnbook.core.results import Clock
from attnbook.core.resuming import seed_by_seed


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (7, 2, 5)
    chunk: int = 2


def _measure(seed):
    return {"square": np.full((2, 3), float(seed**2)), "itself": np.array(float(seed))}


def test_arrays_hold_all_seeds_in_their_order_along_the_first_axis():
    found = seed_by_seed(Settings(), _measure, clock=Clock())
    assert found["itself"].tolist() == [7, 2, 5]
    assert found["square"].shape == (3, 2, 3)
    assert found["square"][:, 1, 2].tolist() == [49, 4, 25]


def test_progress_counts_every_seed_and_ends_at_all():
    told = []
    seed_by_seed(Settings(), _measure, clock=Clock(), progress=lambda done, total: told.append(done / total))
    assert told == pytest.approx([1 / 4, 2 / 4, 1])


def test_seeds_that_were_finished_before_a_break_are_not_measured_again(tmp_path):
    measured = []

    def breaks_at_five(seed):
        if seed == 5 and 5 not in measured:
            measured.append(seed)
            raise KeyboardInterrupt
        measured.append(seed)
        return _measure(seed)

    with pytest.raises(KeyboardInterrupt):
        seed_by_seed(Settings(), breaks_at_five, clock=Clock(), workdir=tmp_path)
    found = seed_by_seed(Settings(), breaks_at_five, clock=Clock(), workdir=tmp_path)
    assert measured == [7, 2, 5, 5]
    assert found["itself"].tolist() == [7, 2, 5]
