"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.softmax_ntk.experiments import (
    circle,
    identities,
    lazy_training,
    planted_attention,
    samples,
    starts,
    step_size,
    to_self_attention,
)

__all__ = [
    "EXPERIMENTS",
    "circle",
    "identities",
    "lazy_training",
    "planted_attention",
    "samples",
    "starts",
    "step_size",
    "to_self_attention",
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
        id="softmax_ntk.to_self_attention",
        summary="Appendix H: self-attention by the tensor trick and row by row; what cannot be identified",
        settings=to_self_attention.Settings,
        result=to_self_attention.ToSelfAttention,
        run=to_self_attention.run,
        budget_seconds=10,
    ),
    Experiment(
        id="softmax_ntk.planted_attention",
        summary="Alternating, joint and softmax-only training of a planted self-attention layer at equal budget",
        settings=planted_attention.Settings,
        result=planted_attention.PlantedAttention,
        run=planted_attention.run,
        budget_seconds=40,
    ),
)
