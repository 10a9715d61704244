"""What must be beaten: logistic regression on features without attention, its penalty chosen on validation samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

__all__ = ["TEXT_BASELINES", "bag_of_words", "logistic_regression", "text_features"]

TEXT_BASELINES = ("mean_vector", "bag_of_words", "tf_idf")
"""The features of a review are the mean of its word vectors (uniform attention), counts of words, weighted counts."""

PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def logistic_regression(
    features: Sequence[Any], labels: Sequence[Int[np.ndarray, " _"]], penalties: Sequence[float] = PENALTIES
) -> tuple[float, float]:
    """Return the test accuracy of logistic regression at the penalty with the highest validation accuracy.

    Args:
        features: Of training, validation and test samples, arrays or sparse matrices.
        labels: Their classes.
        penalties: Inverse strengths of the quadratic penalty to choose from.

    Returns:
        Test accuracy, and the penalty chosen.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak penalties, which validation does not choose
        for penalty in penalties:
            model = LogisticRegression(C=penalty, max_iter=200).fit(features[0], labels[0])
            found.append((model.score(features[1], labels[1]), model.score(features[2], labels[2]), penalty))
    _, accuracy, penalty = max(found, key=lambda one: one[0])
    return float(accuracy), float(penalty)


def bag_of_words(tokens: Int[np.ndarray, "reviews tokens"], n_ids: int) -> Any:
    """Return how often each id occurs in each review, as a sparse matrix.

    Args:
        tokens: Ids; 0 is no word.
        n_ids: Number of ids.

    Returns:
        Counts ``(reviews, n_ids)``.

    Example:
        >>> bag_of_words(np.array([[2, 2, 1, 0]]), 3).toarray()
        array([[0., 1., 2.]])
    """
    from scipy.sparse import coo_array

    rows, places = np.nonzero(tokens)
    counts = coo_array((np.ones(len(rows)), (rows, tokens[rows, places])), shape=(len(tokens), n_ids))
    return counts.tocsr()


def text_features(
    splits: Sequence[Int[np.ndarray, "_ tokens"]], vectors: Float[np.ndarray, "ids dimension"]
) -> dict[str, list[Any]]:
    """Return the features of reviews by the names of :data:`TEXT_BASELINES`.

    Args:
        splits: Ids of training, validation and test reviews; what is fitted is fitted to the first.
        vectors: One vector per id.

    Returns:
        Name to the features of each split; mean vectors are standardised.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = [bag_of_words(tokens, len(vectors)) for tokens in splits]
    means = [one @ vectors / np.maximum(one.sum(axis=1), 1)[:, None] for one in counts]
    centre, deviation = means[0].mean(axis=0), means[0].std(axis=0) + 1e-12
    weighted = TfidfTransformer(sublinear_tf=True).fit(counts[0])
    return {
        "mean_vector": [(mean - centre) / deviation for mean in means],
        "bag_of_words": counts,
        "tf_idf": [weighted.transform(one) for one in counts],
    }
