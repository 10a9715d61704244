"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.global_attention.experiments import error_rate, guidelines, recurrent, sample_complexity, sparsity

__all__ = ["EXPERIMENTS", "error_rate", "guidelines", "recurrent", "sample_complexity", "sparsity"]

EXPERIMENTS = (
    Experiment(
        id="global_attention.sample_complexity",
        summary="Table 1 and Figure 7: test loss of three models for six sample sizes",
        settings=sample_complexity.Settings,
        result=sample_complexity.SampleComplexity,
        run=sample_complexity.run,
        budget_seconds=30,
    ),
    Experiment(
        id="global_attention.error_rate",
        summary="Theorem 1, Corollary 1, Proposition 1: error against samples with noisy labels",
        settings=error_rate.Settings,
        result=error_rate.ErrorRate,
        run=error_rate.run,
        budget_seconds=30,
    ),
    Experiment(
        id="global_attention.sparsity",
        summary="When a mask helps: error against samples for several numbers of relevant inputs",
        settings=sparsity.Settings,
        result=sparsity.Sparsity,
        run=sparsity.run,
        budget_seconds=30,
    ),
    Experiment(
        id="global_attention.recurrent",
        summary="Theorem 6: recurrent attention and its baselines, error against sample size",
        settings=recurrent.Settings,
        result=recurrent.Recurrent,
        run=recurrent.run,
        budget_seconds=30,
    ),
    Experiment(
        id="global_attention.guidelines",
        summary="Guidelines: error against the strength of penalties on weights, mask and attention",
        settings=guidelines.Settings,
        result=guidelines.Guidelines,
        run=guidelines.run,
        budget_seconds=30,
    ),
)
