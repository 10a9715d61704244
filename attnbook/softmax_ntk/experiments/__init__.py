"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.softmax_ntk.experiments import (
    circle,
    identities,
    input_norms,
    lazy_training,
    one_step,
    samples,
    smallest_width,
    starts,
    step_size,
)

__all__ = [
    "EXPERIMENTS",
    "circle",
    "identities",
    "input_norms",
    "lazy_training",
    "one_step",
    "samples",
    "smallest_width",
    "starts",
    "step_size",
]

EXPERIMENTS = (
    Experiment(
        id="softmax_ntk.identities",
        summary="Claim 3.4, Definitions 3.6 and 3.7: closed forms against automatic differentiation, invariants",
        settings=identities.Settings,
        result=identities.Identities,
        run=identities.run,
        budget_seconds=10,
    ),
    Experiment(
        id="softmax_ntk.circle",
        summary="A picture of lazy training: networks and kernel machines on a circle",
        settings=circle.Settings,
        result=circle.Circle,
        run=circle.run,
        budget_seconds=20,
    ),
    Experiment(
        id="softmax_ntk.lazy_training",
        summary="Theorem 4.2, Lemma 5.3, Table 1: loss, movement and kernel drift against width",
        settings=lazy_training.Settings,
        result=lazy_training.LazyTraining,
        run=lazy_training.run,
        budget_seconds=40,
    ),
    Experiment(
        id="softmax_ntk.samples",
        summary="Steps against the number of samples, beside the theorem's",
        settings=samples.Settings,
        result=samples.Samples,
        run=samples.run,
        budget_seconds=15,
    ),
    Experiment(
        id="softmax_ntk.step_size",
        summary="Usable step sizes, the catapult beyond them, and the theorem's",
        settings=step_size.Settings,
        result=step_size.StepSize,
        run=step_size.run,
        budget_seconds=40,
    ),
    Experiment(
        id="softmax_ntk.starts",
        summary="What pairs buy: kernel drift at equal residual for three starts",
        settings=starts.Settings,
        result=starts.Starts,
        run=starts.run,
        budget_seconds=20,
    ),
    Experiment(
        id="softmax_ntk.one_step",
        summary="Lemmas D.1, D.3 and E.1: the four terms of one step of the induction",
        settings=one_step.Settings,
        result=one_step.OneStep,
        run=one_step.run,
        budget_seconds=10,
    ),
    Experiment(
        id="softmax_ntk.smallest_width",
        summary="The smallest working width against the number of samples, beside a counting bound",
        settings=smallest_width.Settings,
        result=smallest_width.SmallestWidth,
        run=smallest_width.run,
        budget_seconds=30,
    ),
    Experiment(
        id="softmax_ntk.input_norms",
        summary="What the denominator buys: steps when the input norms vary",
        settings=input_norms.Settings,
        result=input_norms.InputNorms,
        run=input_norms.run,
        budget_seconds=30,
    ),
)
