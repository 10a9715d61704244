r"""Formulas about recurrent attention: Theorem 6, what order-blind models cannot learn, and unsafe weights.

=======================  ==================================  ======================================================
paper                    name here                           meaning
=======================  ==================================  ======================================================
$p$, $t$                 ``n_words``, ``dimension``          words of a sentence, entries of a word
$d$                      ``width``                           hidden units that read the context
$d_a$, $d_f$             ``recurrence``                      weights of score and recurrence
$\gamma^2$               ``error``                           squared prediction error asked for
$C_1, C_2, C_x$          ``c_hidden``, ...                   bounds on $\|w^{(1)}\|_F$, $\|w^{(2)}\|$, $|x|$
$C_8, C_9$               ``c_score``, ``c_recurrence``       bounds on the norms of $w_a$ and $w_f$
$e_{kj}$, $\alpha_{kj}$  ``logits``, ``weights``             score and weight of word $j$ at step $k$
=======================  ==================================  ======================================================

The bound holds up to a constant that the paper does not give, so only ratios mean anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.global_attention.word_teachers import WordTeacher

__all__ = [
    "Recurrence",
    "felt_directions",
    "moved_score",
    "order_blind_floor",
    "ratio_weights",
    "samples_needed",
    "weight_counts",
]


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a recurrent attention model.

    Attributes:
        n_steps: Looks $T$.
        state: Entries of the state.
        score: Hidden units of the additive score; 0 for the product of state and word, which has none.
    """

    n_steps: int
    state: int
    score: int

    def __post_init__(self) -> None:
        for name, least in {"n_steps": 1, "state": 1, "score": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")


def weight_counts(recurrence: Recurrence, dimension: int, width: int) -> dict[str, int]:
    r"""Return the numbers of weights that Theorem 6 adds up: $td + d$, $d_a$ and $d_f$.

    Args:
        recurrence: Sizes of score and recurrence.
        dimension: Entries $t$ of a word.
        width: Hidden units $d$ of the two layers that read the context.

    Returns:
        ``layers`` $=td+d$, ``score`` $=d_a$ and ``recurrence`` $=d_f$, which is 0 for one step: $f$ is then not used.

    Example:
        >>> weight_counts(Recurrence(n_steps=2, state=3, score=5), dimension=7, width=11)
        {'layers': 88, 'score': 55, 'recurrence': 30}
    """
    state, hidden = recurrence.state, recurrence.score
    return {
        "layers": width * dimension + width,
        "score": hidden * (state + dimension + 1) if hidden else state * dimension,
        "recurrence": state * (state + dimension) if recurrence.n_steps > 1 else 0,
    }


def samples_needed(
    error: float,
    recurrence: Recurrence,
    *,
    dimension: int,
    width: int,
    c_hidden: float = 1.0,
    c_decoder: float = 1.0,
    c_inputs: float = 1.0,
    c_score: float = 1.0,
    c_recurrence: float = 1.0,
) -> float:
    r"""Return the sample size of Theorem 6, up to the theorem's constant.

    $n \gtrsim C_1^2C_x^2\eta^2\gamma^{-2}\log(\eta C_8C_9/\gamma)\,(td+d+d_a+d_f)$ with $\eta=C_1C_2C_x$.

    Args:
        error: Squared prediction error $\gamma^2$, positive.
        recurrence: Sizes of score and recurrence.
        dimension: Entries $t$ of a word.
        width: Hidden units $d$.
        c_hidden: Bound $C_1$; default 1, only ratios matter.
        c_decoder: Bound $C_2$; default 1.
        c_inputs: Bound $C_x$; default 1.
        c_score: Bound $C_8$; default 1.
        c_recurrence: Bound $C_9$; default 1.

    Returns:
        The sample size, without the constant.

    Raises:
        ValueError: If an argument is outside its range, or the error is so large that the logarithm is not positive.

    Example:
        >>> small, large = Recurrence(1, 4, 8), Recurrence(3, 32, 64)
        >>> sizes = {"dimension": 6, "width": 32}
        >>> round(samples_needed(0.01, large, **sizes) / samples_needed(0.01, small, **sizes), 1)
        12.6
    """
    positive = {"error": error, "dimension": dimension, "width": width, "c_hidden": c_hidden, "c_decoder": c_decoder}
    positive |= {"c_inputs": c_inputs, "c_score": c_score, "c_recurrence": c_recurrence}
    for name, value in positive.items():
        if not 0 < value < np.inf:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    eta = c_hidden * c_decoder * c_inputs
    logarithm = np.log(eta * c_score * c_recurrence / np.sqrt(error))
    if logarithm <= 0:
        largest = (eta * c_score * c_recurrence) ** 2
        raise ValueError(f"error: the bound speaks of errors below (eta C8 C9)^2 = {largest:g}, got {error:g}")
    weights = sum(weight_counts(recurrence, dimension, width).values())
    return float((c_hidden * c_inputs * eta) ** 2 / error * logarithm * weights)


def ratio_weights(logits: Float[np.ndarray, "*samples words"]) -> Float[np.ndarray, "*samples words"]:
    r"""Return $e_j/\sum_je_j$, the weights as the text available to us prints them; unsafe where scores change sign.

    Args:
        logits: Scores $e_j$ of either sign.

    Returns:
        Ratios that sum to one; they may be negative, and as large as one likes where the scores nearly cancel.

    Example:
        >>> ratio_weights(np.array([2.0, -1.0])).tolist()
        [2.0, -1.0]
    """
    return logits / logits.sum(-1, keepdims=True)


def moved_score(
    score: float, others: tuple[float, ...] = (2.0, 1.0, -1.0)
) -> tuple[Float[np.ndarray, " words"], Float[np.ndarray, " words"], Float[np.ndarray, " words"]]:
    r"""Return the scores of a few words of which the last one moves, and their weights in both readings.

    Args:
        score: Score of the last word.
        others: Scores of the words before it; the default is this book's example.

    Returns:
        Scores $e_j$, softmax weights $e^{e_j}/\sum_ie^{e_i}$ and plain ratios $e_j/\sum_ie_i$.

    Raises:
        ValueError: If the scores cancel, so that plain ratios do not exist.

    Example:
        >>> moved_score(-1.0)[2].tolist()
        [2.0, 1.0, -1.0, -1.0]
    """
    logits = np.array([*others, score])
    if logits.sum() == 0:
        raise ValueError(f"score: the scores cancel at {score:g}, plain ratios do not exist")
    return logits, ratio_weights(np.exp(logits - logits.max())), ratio_weights(logits)


def order_blind_floor(
    teacher: WordTeacher,
    sentences: Float[np.ndarray, "samples words dimension"],
    *,
    shuffles: int,
    rng: np.random.Generator,
) -> float:
    r"""Estimate the error that no model blind to the order of words can get below.

    Such a model answers the same for every order of the same words, and all orders are equally likely here; so its mean
    squared error is at least the mean, over sentences, of the variance of the label over orders.

    Args:
        teacher: Labels the sentences.
        sentences: Sentences.
        shuffles: Random orders tried per sentence, at least 2; the estimate is unbiased for any number.
        rng: Source of the orders.

    Returns:
        The floor, in units of the label variance.

    Raises:
        ValueError: If ``shuffles`` is below 2.
    """
    if shuffles < 2:
        raise ValueError(f"shuffles: expected at least 2, got {shuffles}")
    labels = []
    for _ in range(shuffles):
        order = rng.permuted(np.tile(np.arange(sentences.shape[1]), (len(sentences), 1)), axis=1)
        labels.append(teacher(np.take_along_axis(sentences, order[..., None], axis=1)))
    return float(np.var(labels, axis=0, ddof=1).mean())


def felt_directions(jacobian: Float[np.ndarray, "samples weights"], share: float = 1e-3) -> int:
    r"""Count the directions in weight space that the answers on a sample feel.

    Args:
        jacobian: Derivative of each answer with respect to each weight.
        share: Squared singular values of at least this share of the largest count; default a thousandth.

    Returns:
        Their number, at most the smaller side of the Jacobian.

    Raises:
        ValueError: If ``share`` is not between 0 and 1.

    Example:
        >>> felt_directions(np.diag([1.0, 0.5, 1e-9]))
        2
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number above 0 and at most 1, got {share}")
    wide = jacobian if jacobian.shape[0] <= jacobian.shape[1] else jacobian.T
    squared = np.linalg.eigvalsh(wide @ wide.T)
    return int((squared >= share * squared[-1]).sum())
