"""The experiments of this paper: settings, runs, results.

On :mod:`eigenvalues` no claim rests, so it is not registered: a notebook calls it for its slider.
"""

from attnbook.core.results import Experiment
from attnbook.multi_head.experiments import (
    curvature,
    eigenvalues,
    feasibility,
    large_weights,
    linear_rules,
    margin_order,
    margin_race,
    margins,
    oracle_logits,
    random_starts,
    single_head,
)

__all__ = [
    "EXPERIMENTS",
    "curvature",
    "eigenvalues",
    "feasibility",
    "large_weights",
    "linear_rules",
    "margin_order",
    "margin_race",
    "margins",
    "oracle_logits",
    "random_starts",
    "single_head",
]

EXPERIMENTS = (
    Experiment(
        id="multi_head.single_head",
        summary="Lemma 1 and Proposition 1: derivatives of one head and bounds on them",
        settings=single_head.Settings,
        result=single_head.SingleHead,
        run=single_head.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.curvature",
        summary="Corollary 1: extreme curvature of the loss against the number of heads",
        settings=curvature.Settings,
        result=curvature.Curvature,
        run=curvature.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.large_weights",
        summary="Corollary 1 at larger weights: the bound holds, the law in the number of heads fails",
        settings=large_weights.Settings,
        result=large_weights.LargeWeights,
        run=large_weights.run,
        budget_seconds=30,
    ),
    Experiment(
        id="multi_head.oracle_logits",
        summary="Eq. (8): logits under the oracle key-query matrix, and their smallest gap",
        settings=oracle_logits.Settings,
        result=oracle_logits.OracleLogits,
        run=oracle_logits.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.linear_rules",
        summary="What linear rules separate and what attention does, against the noise",
        settings=linear_rules.Settings,
        result=linear_rules.LinearRules,
        run=linear_rules.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.margins",
        summary="Proposition 3: how strongly attention must be scaled, and its margin",
        settings=margins.Settings,
        result=margins.Margins,
        run=margins.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.margin_order",
        summary="Sections 5.3 and 7: the order of three margins, and when it flips",
        settings=margin_order.Settings,
        result=margin_order.MarginOrder,
        run=margin_order.run,
        budget_seconds=10,
    ),
    Experiment(
        id="multi_head.feasibility",
        summary="Section 5.3: heads and signal strengths for which the theorem reaches the oracle",
        settings=feasibility.Settings,
        result=feasibility.Feasibility,
        run=feasibility.run,
        budget_seconds=5,
    ),
    Experiment(
        id="multi_head.margin_race",
        summary="Section 7: does gradient descent, plain or normalised by the loss, reach the attention margin?",
        settings=margin_race.Settings,
        result=margin_race.MarginRace,
        run=margin_race.run,
        budget_seconds=15,
    ),
    Experiment(
        id="multi_head.random_starts",
        summary="Open question: tangent-kernel margins at random starts",
        settings=random_starts.Settings,
        result=random_starts.RandomStarts,
        run=random_starts.run,
        budget_seconds=5,
    ),
)
