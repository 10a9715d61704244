r"""The cone around a max-margin solution: its width, and what holds inside (Lemmas 19 to 21, constants (4a)).

All constants are our reconstruction.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from attnbook.mirror_descent.mirror import best_constant, conjugate


def separation(
    margins: Float[np.ndarray, "*batch samples tokens"], support: Bool[np.ndarray, "*batch samples tokens"]
) -> Float[np.ndarray, "*batch"]:
    r"""Return $\delta$: half the smallest excess margin of a token that is not a support token (4a).

    Example:
        >>> float(separation(np.array([[np.inf, 1.0, 1.5]]), np.array([[False, True, False]])))
        0.25
    """
    others = np.where(support, np.inf, margins)
    return np.asarray((others - 1).min(axis=(-2, -1)) / 2)


def largest_pair(
    tokens: Float[np.ndarray, "*batch samples tokens dimension"],
    queries: Float[np.ndarray, "*batch samples dimension"],
    norm: Float[np.ndarray, "*batch"],
    p: float,
) -> Float[np.ndarray, "*batch"]:
    r"""Return $A_\star=\|W_{mm}\|_{p,p}\max_{i,t}\|X_{it}z_i^\top\|_{q,q}$ (4a).

    By Hölder's inequality, a matrix that is within $\epsilon\|W_{mm}\|_{p,p}$ of $W_{mm}$ has logits within
    $\epsilon A_\star$ of those of $W_{mm}$.
    """
    q = float(conjugate(p))
    # The norm of an outer product is the product of the norms.
    token, query = (np.linalg.norm(vectors, ord=q, axis=-1) for vectors in (tokens, queries))
    return np.asarray(norm * (token.max(axis=-1) * query).max(axis=-1))


def guaranteed_divergence(
    delta: Float[np.ndarray, "*batch"],
    pair: Float[np.ndarray, "*batch"],
    dimension: int,
    p: float,
    *,
    sharp: bool = False,
) -> Float[np.ndarray, "*batch"]:
    r"""Return $\mu_0$, the divergence up to which Lemma 19 is proved (4a).

    With $m=\min(\frac12,\delta)$ it is $\frac1p(m/4A_\star)^p$ for $p\ge2$, else
    $\frac{p-1}2\big(m/(2A_\star d^{2/p-1})\big)^2$. The sharper constants of Lemma 13 give $c_p^\star(m/2A_\star)^p$
    and $\frac{p-1}2(m/2A_\star)^2$.

    Example:
        >>> float(guaranteed_divergence(np.array(1.0), np.array(1.0), 3, 2.0))
        0.0078125
    """
    ratio = np.minimum(0.5, delta) / pair
    if p >= 2:
        return np.asarray(best_constant(p) * (ratio / 2) ** p if sharp else (ratio / 4) ** p / p)
    return np.asarray((p - 1) / 2 * (ratio / (2 if sharp else 2 * dimension ** (2 / p - 1))) ** 2)


def sufficient_radius(
    delta: Float[np.ndarray, "*batch"],
    pair: Float[np.ndarray, "*batch"],
    token_scores: Float[np.ndarray, "*batch samples tokens"],
    selected: Int[np.ndarray, "*batch samples"],
    support: Bool[np.ndarray, "*batch samples tokens"],
) -> Float[np.ndarray, "*batch"]:
    r"""Return the relative norm from which Lemma 20 holds, up to a constant $C$ that is set to 1 here (this book's).

    $R_\delta/\|W_{mm}\|=\frac1{\min(\delta,1/2)}\log\frac{C\,n\,T^2A_\star\Gamma}{\gamma_{gap}}$ with $\Gamma$ the
    largest range of scores and $\gamma_{gap}$ the smallest lead of a selected token over a support token.

    Example:
        >>> scores, support = np.array([[0.9, -0.4, -0.9]]), np.array([[False, True, False]])
        >>> float(sufficient_radius(np.array(0.5), np.array(1.0), scores, np.array([0]), support).round(3))
        5.045
    """
    samples, tokens = token_scores.shape[-2:]
    own = np.take_along_axis(token_scores, selected[..., None], axis=-1)
    lead = np.where(support, own - token_scores, np.inf).min(axis=(-2, -1))
    spread = np.ptp(token_scores, axis=-1).max(axis=-1)
    return np.asarray(np.log(samples * tokens**2 * pair * spread / lead) / np.minimum(0.5, delta))


def gaps(
    weights: Float[np.ndarray, "*batch dimension dimension"],
    tokens: Float[np.ndarray, "*#batch samples tokens dimension"],
    queries: Float[np.ndarray, "*#batch samples dimension"],
    selected: Int[np.ndarray, "*#batch samples"],
) -> Float[np.ndarray, "*batch samples tokens"]:
    r"""Return $(X_{i\alpha_i}-X_{it})^\top Wz_i$, infinite at the selected token."""
    keys = np.asarray(queries) @ np.swapaxes(weights, -1, -2)
    logits = (tokens @ keys[..., None])[..., 0]
    index = np.broadcast_to(selected[..., None], (*logits.shape[:-1], 1))
    found = np.take_along_axis(logits, index, axis=-1) - logits
    np.put_along_axis(found, index, np.inf, axis=-1)
    return np.asarray(found)


def gap_slacks(
    found: Float[np.ndarray, "*batch samples tokens"],
    support: Bool[np.ndarray, "*#batch samples tokens"],
    delta: Float[np.ndarray, "*#batch"],
) -> dict[str, Float[np.ndarray, "*batch"]]:
    r"""Return by how much the three parts of Lemma 19 hold; negative where one fails.

    For support tokens $t$ and all other tokens $\tau$ of sample $i$: (12a) $(X_{it}-X_{i\tau})^\top Wz_i\ge\delta$,
    (12b) $(X_{i\alpha_i}-X_{i\tau})^\top Wz_i\ge1+\delta$, (12c)
    $\frac12\le(X_{i\alpha_i}-X_{it})^\top Wz_i\le\frac32$.
    """
    delta = np.where(np.isfinite(delta), delta, 0.0)
    other = np.where(support, np.inf, found).min(axis=-1)
    highest = np.where(support, found, -np.inf).max(axis=-1)
    lowest = np.where(support, found, np.inf).min(axis=-1)
    return {
        "12a": np.asarray((other - highest - delta[..., None]).min(axis=-1)),
        "12b": np.asarray((other - 1 - delta[..., None]).min(axis=-1)),
        "12c": np.asarray(np.minimum(lowest - 0.5, 1.5 - highest).min(axis=-1)),
    }
