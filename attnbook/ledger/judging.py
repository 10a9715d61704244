"""Judge measurements by the rules of the ledger."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from attnbook.core.results import Measurement, stored_measurements
from attnbook.ledger.schema import Claim, LedgerError

__all__ = ["OUTCOMES", "Verdict", "judge", "recorded", "standing"]

OUTCOMES = (
    "reproduced",
    "consistent with the bound",
    "reproduced in trend",
    "contradicted",
    "not reproduced",
    "not testable",
    "pending",
)

FUNCTIONS = {"abs": abs, "min": min, "max": max, "sqrt": math.sqrt, "log": math.log, "log10": math.log10}


@dataclass(frozen=True)
class Verdict:
    """The outcome for one claim.

    Attributes:
        claim: The claim.
        size: Size of the run.
        outcome: One of :data:`OUTCOMES`, or that a run of the reader's own is not judged.
        measurement: What was measured; None when nothing was.
        own: How that run differs from those of the book, and what follows; empty for these.
    """

    claim: Claim
    size: str
    outcome: str
    measurement: Measurement | None = None
    own: str = ""

    @property
    def n_seeds(self) -> int:
        """Number of seeds behind it; 0 when nothing was measured."""
        return self.measurement.n_seeds if self.measurement else 0


def judge(claim: Claim, measurement: Measurement, size: str = "book") -> Verdict:
    """Apply a claim's rule to what was measured.

    Args:
        claim: The claim.
        measurement: Values under the names that the rule uses.
        size: Size of the run.

    Returns:
        The verdict the claim earns when the rule holds, else ``not reproduced``.

    Raises:
        LedgerError: If the claim has no rule, the rule is malformed or uses a name that was not
            measured, or a value is NaN.
    """
    from simpleeval import InvalidExpression

    if not claim.accept:
        raise LedgerError(f"{claim.id}: has no rule to judge by ({claim.untestable or 'no accept'})")
    bad = [name for name, value in measurement.values.items() if math.isnan(value)]
    if bad:
        raise LedgerError(f"{claim.id}: measured value {bad[0]!r} is NaN")
    names = {**measurement.values, **{f"paper_{name}": value for name, value in claim.paper_value.items()}}
    try:
        holds = _evaluate(claim.accept, names)
    except (InvalidExpression, SyntaxError, TypeError, ArithmeticError, LookupError, ValueError) as error:
        raise LedgerError(f"{claim.id}: rule {claim.accept!r} cannot be evaluated: {error}") from error
    if not isinstance(holds, bool):
        raise LedgerError(f"{claim.id}: rule {claim.accept!r} must be true or false, gave {holds!r}")
    return Verdict(claim, size, claim.verdict if holds else "not reproduced", measurement)


def _evaluate(rule: str, names: Mapping[str, float]) -> object:
    from simpleeval import SimpleEval

    tree, used = _parsed(rule)
    # Names are looked up beforehand: `and` and `or` would hide a wrong one.
    unknown = sorted(used - set(names) - set(FUNCTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not among {', '.join(names)}")
    return SimpleEval(functions=FUNCTIONS, names=names).eval(rule, previously_parsed=tree)


@cache
def _parsed(rule: str) -> tuple[ast.expr, frozenset[str]]:
    """A rule and the names in it; the pages of the book ask for each rule dozens of times."""
    tree = ast.parse(rule, mode="eval").body
    return tree, frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def recorded(claim: Claim, size: str = "book") -> Verdict:
    """Return the verdict on the stored result of one size.

    Args:
        claim: The claim.
        size: ``book`` or ``full``.

    Returns:
        The verdict; ``pending`` while nothing is stored.

    Raises:
        ResultError: If the stored result is damaged.
    """
    if claim.untestable:
        return Verdict(claim, size, "not testable")
    measurement = None if claim.pending else stored_measurements(claim.experiment, size).get(claim.id)
    return Verdict(claim, size, "pending") if measurement is None else judge(claim, measurement, size)


def standing(claim: Claim) -> Verdict:
    """Return the verdict that counts, the same on every page.

    It is that of the size which the statement names, else of the stored result with the most seeds: a poorer run never
    outranks a better one. Of equally many seeds the larger size counts.

    Args:
        claim: The claim.

    Returns:
        The verdict.
    """
    verdicts = [recorded(claim, size) for size in ("full", "book")]
    found = [v for v in verdicts if v.measurement]
    named = [v for v in found if v.size == claim.size]
    return max(named or found, key=lambda v: v.n_seeds, default=verdicts[-1])
