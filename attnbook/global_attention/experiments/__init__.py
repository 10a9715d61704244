"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.global_attention.experiments import noisy_mnist

__all__ = ["EXPERIMENTS", "noisy_mnist"]

EXPERIMENTS = (
    Experiment(
        id="global_attention.noisy_mnist",
        summary="Figures 2, 4, 5 and 6: small digits in large images of noise, with and without a mask",
        settings=noisy_mnist.Settings,
        result=noisy_mnist.NoisyMnist,
        run=noisy_mnist.run,
        budget_seconds=60,
    ),
)
