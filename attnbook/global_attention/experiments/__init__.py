"""The experiments of this paper: settings, runs, results."""

from attnbook.core.results import Experiment
from attnbook.global_attention.experiments import (
    imdb,
    made_reviews,
    noisy_mnist,
    review_steps,
    self_attention,
)

__all__ = [
    "EXPERIMENTS",
    "imdb",
    "made_reviews",
    "noisy_mnist",
    "review_steps",
    "self_attention",
]

EXPERIMENTS = (
    Experiment(
        id="global_attention.noisy_mnist",
        summary="Figures 2, 4, 5 and 6: small digits in large images of noise, with and without a mask",
        settings=noisy_mnist.Settings,
        result=noisy_mnist.NoisyMnist,
        run=noisy_mnist.run,
        budget_seconds=60,
    ),
    Experiment(
        id="global_attention.self_attention",
        summary="Theorem 2: students with and without attention on samples of a self-attention teacher",
        settings=self_attention.Settings,
        result=self_attention.AttendedTeachers,
        run=self_attention.run,
        budget_seconds=40,
    ),
    Experiment(
        id="global_attention.imdb",
        summary="Table 2 and its controls, on real reviews (needs them: see `attnbook data`)",
        settings=imdb.Settings,
        result=imdb.Imdb,
        run=imdb.run,
        budget_seconds=60,
    ),
    Experiment(
        id="global_attention.made_reviews",
        summary="Table 2 in miniature and its controls, on synthetic reviews that need no data",
        settings=made_reviews.Settings,
        result=made_reviews.MadeReviews,
        run=made_reviews.run,
        budget_seconds=40,
    ),
    Experiment(
        id="global_attention.review_steps",
        summary="Table 2: each network at three step sizes, on training reviews set apart (needs the reviews)",
        settings=review_steps.Settings,
        result=review_steps.ReviewSteps,
        run=review_steps.run,
        budget_seconds=60,
    ),
)
