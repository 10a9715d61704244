"""The experiments of this paper whose chapters have not moved into folders of their own."""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    after_start,
    first_phase,
    good_start,
    start_margin,
)

__all__ = [
    "EXPERIMENTS",
    "after_start",
    "first_phase",
    "good_start",
    "start_margin",
]

EXPERIMENTS = (
    Experiment(
        id="multi_head.first_phase",
        summary="Lemma 2: what one step from zero writes, and what of it is not signal",
        settings=first_phase.Settings,
        result=first_phase.FirstPhase,
        run=first_phase.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.good_start",
        summary="Definition 1 and Proposition 2: norms, outputs and margins at the start, by number of heads",
        settings=good_start.Settings,
        result=good_start.GoodStart,
        run=good_start.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.start_margin",
        summary="Eq. (7): the tangent-kernel margin at the start without noise, with noise and with a residual",
        settings=start_margin.Settings,
        result=start_margin.StartMargin,
        run=start_margin.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.after_start",
        summary="Training from zero and from first-phase starts with lucky and unlucky signs",
        settings=after_start.Settings,
        result=after_start.AfterStart,
        run=after_start.run,
        budget_seconds=15,
    ),
)
