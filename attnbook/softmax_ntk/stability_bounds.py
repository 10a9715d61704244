r"""How far the kernel may move: Definition 4.1 and Lemma 5.1.

=============================  ==========================  ====================================================
paper                          name here                   meaning
=============================  ==========================  ====================================================
$n$, $d$                       ``n_samples``, ...          samples, outputs
$R$                            ``radius``                  no neuron moves farther: $\|w_r-\tilde w_r\|\le R$
$B$                            ``exponent``                bounds every $|\langle w_r, x_i\rangle|$; at least 1
$\lambda$                      ``smallest_eigenvalue``     smallest eigenvalue of the kernel at the start
$\sigma$, $\delta$             ``scale``, ``failure``      deviation of the weights; probability of failure
=============================  ==========================  ====================================================

In the text of the paper that we could read the equations are missing: every formula is our reconstruction. All
functions raise ValueError for numbers outside their range, and name them.
"""

from __future__ import annotations

import numpy as np

from attnbook.core.settings import check_positive

__all__ = [
    "check_exponent", "check_failure", "exponent_of_definition", "kernel_change_bound",
]  # fmt: skip


def check_exponent(exponent: float) -> None:
    """Refuse an exponent that is not finite and at least 1."""
    if not 1 <= exponent < float("inf"):
        raise ValueError(f"exponent: B is at least 1 by its definition, got {exponent}")


def check_failure(failure: float) -> None:
    """Refuse a number that is no probability strictly between 0 and 1."""
    if not 0 < failure < 1:
        raise ValueError(f"failure: expected a probability between 0 and 1, got {failure}")


def exponent_of_definition(
    n_samples: int, n_outputs: int, *, constant: float = 2.0, scale: float = 1.0, failure: float = 0.1
) -> float:
    r"""Return $B = \max\{C\sigma\sqrt{\log(nd/\delta)}, 1\}$ of Definition 4.1 (reconstructed).

    Args:
        n_samples: $n$.
        n_outputs: $d$.
        constant: $C$, which the definition wants large; default 2, which a union bound allows for widths up to
            $nd^2/(2\delta)$.
        scale: $\sigma$.
        failure: $\delta$.

    Returns:
        $B$.

    Example:
        >>> round(exponent_of_definition(32, 2), 2)
        5.08
    """
    check_positive(n_samples=n_samples, n_outputs=n_outputs, constant=constant, scale=scale)
    check_failure(failure)
    return float(max(constant * scale * np.sqrt(np.log(n_samples * n_outputs / failure)), 1.0))


def kernel_change_bound(radius: float, *, n_samples: int, n_outputs: int, exponent: float) -> float:
    r"""Return Lemma 5.1's bound on $\|H(W)-H(\tilde W)\|_F$, which is $R\,nd\,e^{10B}$, for $R < 0.01$.

    Example:
        >>> f"{kernel_change_bound(0.01, n_samples=32, n_outputs=2, exponent=1.0):.0f}"
        '14097'
    """
    check_positive(radius=radius, n_samples=n_samples, n_outputs=n_outputs)
    check_exponent(exponent)
    return float(radius * n_samples * n_outputs * np.exp(10 * exponent))
