"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.global_attention.experiments import (
    error_rate,
    guidelines,
    hessian_spectrum,
    loss_landscape,
    noisy_mnist,
    recurrent,
    sample_complexity,
    sparsity,
)

__all__ = [
    "EXPERIMENTS",
    "error_rate",
    "guidelines",
    "hessian_spectrum",
    "loss_landscape",
    "noisy_mnist",
    "recurrent",
    "sample_complexity",
    "sparsity",
]

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
        id="global_attention.noisy_mnist",
        summary="Figures 2, 4, 5 and 6: small digits in large images of noise, with and without a mask",
        settings=noisy_mnist.Settings,
        result=noisy_mnist.NoisyMnist,
        run=noisy_mnist.run,
        budget_seconds=60,
    ),
    Experiment(
        id="global_attention.loss_landscape",
        summary="Theorems 3, 4, 5 and Figure 1: linear regions, rescaled minima, few samples",
        settings=loss_landscape.Settings,
        result=loss_landscape.LossLandscape,
        run=loss_landscape.run,
        budget_seconds=15,
    ),
    Experiment(
        id="global_attention.hessian_spectrum",
        summary="Figure 3: leading Hessian eigenvalues at equal steps and at equal training loss",
        settings=hessian_spectrum.Settings,
        result=hessian_spectrum.HessianSpectrum,
        run=hessian_spectrum.run,
        budget_seconds=40,
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
