r"""Formulas about recurrent attention: the sample size of Theorem 6, and what order-blind models cannot learn.

The bound holds up to a constant that the paper does not give, so only ratios mean anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.global_attention.word_teachers import WordTeacher

__all__ = ["Recurrence", "order_blind_floor", "samples_needed", "weight_counts"]


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
    r"""Return the numbers of weights that Theorem 6 adds up.

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
    c_1: float = 1.0,
    c_2: float = 1.0,
    c_x: float = 1.0,
    c_8: float = 1.0,
    c_9: float = 1.0,
) -> float:
    r"""Return the sample size of Theorem 6, up to the theorem's constant.

    $n \gtrsim C_1^2C_x^2\eta^2\gamma^{-2}\log(\eta C_8C_9/\gamma)\,(td+d+d_a+d_f)$ with $\eta=C_1C_2C_x$.

    Args:
        error: Squared prediction error $\gamma^2$, positive.
        recurrence: Sizes of score and recurrence.
        dimension: Entries $t$ of a word.
        width: Hidden units $d$.
        c_1: Bound $C_1$ on $\|w^{(1)}\|_F$; all bounds default to 1, as only ratios matter.
        c_2: Bound $C_2$ on $\|w^{(2)}\|$.
        c_x: Bound $C_x$ on the entries of the words.
        c_8: Bound $C_8$ on $\|w_a\|$.
        c_9: Bound $C_9$ on $\|w_f\|$.

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
    sizes = {"error": error, "dimension": dimension, "width": width}
    bounds = {"c_1": c_1, "c_2": c_2, "c_x": c_x, "c_8": c_8, "c_9": c_9}
    for name, value in (sizes | bounds).items():
        if not 0 < value < np.inf:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    eta = c_1 * c_2 * c_x
    largest = (eta * c_8 * c_9) ** 2
    if error >= largest:
        raise ValueError(f"error: the bound speaks of errors below (eta C8 C9)^2 = {largest:g}, got {error:g}")
    weights = sum(weight_counts(recurrence, dimension, width).values())
    return float((c_1 * c_x * eta) ** 2 / error * np.log(np.sqrt(largest / error)) * weights)


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
