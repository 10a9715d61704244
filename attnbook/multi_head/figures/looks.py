"""How each quantity of this part looks in all of its chapters."""

from __future__ import annotations

from collections.abc import Mapping

from attnbook.core.figures import Look

__all__ = ["LOOKS"]

LOOKS: Mapping[str, Look] = {
    "random": Look("random points", "#c2410c", "-.", "^"),
    "trained": Look("trained points", "#0b5cad", "-", "o"),
    "equal": Look("trained to equal loss", "#9d174d", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "lone": Look("one head does the work", "#7c3aed", ":", "D"),
    "curvature": Look("the paper's bound", "#111111", (0, (1, 1)), "X"),
    "dimension_free_curvature": Look("bound without dimension", "#15803d", (0, (5, 1)), "v"),
    "typical": Look("the typical head", "#5b5f66", "--", "s"),
    "gap": Look("measured gap", "#0b5cad", "-", "o"),
    "left_out": Look("left-out minus training loss", "#c2410c", (0, (5, 2)), "s", hollow=True),
    "lemma_3": Look("Lemma 3, distances measured", "#5b5f66", "-.", "^"),
    "unrolled": Look("Lemma 3, recursion (22)", "#7c3aed", ":", "D"),
    "corollary_2": Look("Corollary 2", "#111111", (0, (1, 1)), "X"),
    "theorem_2": Look("Theorem 2, tangent target", "#15803d", (0, (5, 1)), "v"),
    "fixed_steps": Look("fixed number of steps", "#15803d", (0, (5, 1)), "v"),
    "coins": Look("coin tosses for labels, K = n", "#9d174d", "-.", "P"),
    "coins_fixed": Look("coin tosses for labels", "#9d174d", (0, (1, 1)), "X", hollow=True),
    "few_heads": Look("4 heads", "#0b5cad", "-", "o"),
    "many_heads": Look("a hundred million heads", "#c2410c", "--", "^", hollow=True),
    "distance": Look("distance, measured", "#0b5cad", "-", "o"),
    "recursion": Look("recursion (22), unrolled", "#7c3aed", ":", "D"),
    "printed": Look("(21) with the bracket as shown", "#c2410c", "--", "^"),
    "worst": Look("the worst head", "#1f2937", (0, (6, 2, 1, 2)), "<"),
    "plain_few": Look("plain", "#c2410c", "-.", "^"),
    "plain_many": Look("plain", "#7f1d1d", ":", "D"),
    "normalised_few": Look("normalised", "#0b5cad", "-", "o"),
    "normalised_many": Look("normalised", "#0e7490", "--", "s"),
    "attention_margin": Look(r"attention, $\gamma_{attn}$", "#0b5cad", "-", "o"),
    "tangent_margin": Look(r"linearised network, $\gamma_{*}$", "#c2410c", "-.", "^"),
    "linear_margin": Look(r"uniform attention, $\gamma_{lin}$", "#5b5f66", "--", "s"),
    "zero_start": Look("zero start", "#5b5f66", "--", "none"),
    "first_phase_start": Look("after the first phase", "#15803d", (0, (5, 1)), "none"),
    "quarter": Look("ζ/4 taken off", "#0b5cad", "-", "o"),
    "half": Look("ζ/2 taken off", "#c2410c", "-.", "^"),
}
"""How each quantity of this part looks in all of its chapters."""
