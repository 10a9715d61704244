"""What must be beaten: logistic regression on features without attention, its penalty chosen on validation samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

# The features of a review are the mean of its word vectors (uniform attention), counts of words, weighted counts.
TEXT_BASELINES = ("mean_vector", "bag_of_words", "tf_idf")
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def logistic_regression(
    features: Sequence[Any], labels: Sequence[Int[np.ndarray, " _"]], penalties: Sequence[float] = PENALTIES
) -> float:
    """Return the test accuracy of logistic regression at the penalty with the highest validation accuracy.

    Features and labels are those of training, validation and test samples; penalties are inverse strengths.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak penalties, which validation does not choose
        for penalty in penalties:
            model = LogisticRegression(C=penalty, max_iter=200).fit(features[0], labels[0])
            found.append([float(model.score(*split)) for split in zip(features[1:], labels[1:], strict=True)])
    return max(found, key=lambda one: one[0])[1]


def text_features(
    splits: Sequence[Int[np.ndarray, "_ tokens"]], vectors: Float[np.ndarray, "ids dimension"]
) -> dict[str, list[Any]]:
    """Return the features of training and other reviews by name; what is fitted is fitted to the training reviews."""
    from scipy.sparse import coo_array
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = []  # how often each id occurs in each review; 0 is no word
    for tokens in splits:
        rows, places = np.nonzero(tokens)
        found = coo_array((np.ones(len(rows)), (rows, tokens[rows, places])), shape=(len(tokens), len(vectors)))
        counts.append(found.tocsr())
    means = [one @ vectors / np.maximum(one.sum(axis=1), 1)[:, None] for one in counts]
    centre, deviation = means[0].mean(axis=0), means[0].std(axis=0) + 1e-12
    weighted = TfidfTransformer(sublinear_tf=True).fit(counts[0])
    return {
        "mean_vector": [(mean - centre) / deviation for mean in means],
        "bag_of_words": counts,
        "tf_idf": [weighted.transform(one) for one in counts],
    }
