"""Judge measurements by the rules of the ledger."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbook.core.results import Measurement, Result, stored_measurements
from attnbook.core.runtime import Scale
from attnbook.ledger import rendering
from attnbook.ledger.schema import Claim, LedgerError, claim

__all__ = ["OUTCOMES", "Report", "Verdict", "check", "judge", "recorded", "standing"]

OUTCOMES = ("reproduced", "reproduced in trend", "contradicted", "not reproduced", "not testable", "pending")

FUNCTIONS = {"abs": abs, "min": min, "max": max, "sqrt": math.sqrt, "log": math.log, "log10": math.log10}


@dataclass(frozen=True)
class Verdict:
    """The outcome for one claim.

    Attributes:
        claim: The claim.
        scale: Scale of the measurement.
        outcome: One of :data:`OUTCOMES`.
        measurement: What was measured; None when nothing was.
    """

    claim: Claim
    scale: Scale
    outcome: str
    measurement: Measurement | None = None


@dataclass(frozen=True)
class Report:
    """Verdicts shown as a card in notebooks and as one stable line per claim in text.

    Attributes:
        verdicts: In the order of the ledger.
    """

    verdicts: tuple[Verdict, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{v.claim.id}: {v.outcome}" for v in self.verdicts)

    def _repr_html_(self) -> str:
        return rendering.card(self.verdicts)


def judge(claim: Claim, measurement: Measurement, scale: Scale = "book") -> Verdict:
    """Apply a claim's rule to what was measured.

    Args:
        claim: The claim.
        measurement: Values under the names that the rule uses.
        scale: Scale of the measurement.

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
    return Verdict(claim, scale, claim.verdict if holds else "not reproduced", measurement)


def _evaluate(rule: str, names: Mapping[str, float]) -> object:
    from simpleeval import SimpleEval

    # Names are looked up beforehand: `and` and `or` would hide a wrong one.
    used = {node.id for node in ast.walk(ast.parse(rule, mode="eval")) if isinstance(node, ast.Name)}
    unknown = sorted(used - set(names) - set(FUNCTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not among {', '.join(names)}")
    return SimpleEval(functions=FUNCTIONS, names=names).eval(rule)


def recorded(claim: Claim, scale: Scale = "book") -> Verdict:
    """Return the verdict on the stored result.

    Args:
        claim: The claim.
        scale: ``book`` or ``paper``.

    Returns:
        The verdict; ``pending`` while nothing is stored.

    Raises:
        ResultError: If the stored result is damaged.
    """
    if claim.untestable:
        return Verdict(claim, scale, "not testable")
    measurement = None if claim.pending else stored_measurements(claim.experiment, scale).get(claim.id)
    return Verdict(claim, scale, "pending") if measurement is None else judge(claim, measurement, scale)


def standing(claim: Claim) -> Verdict:
    """Return the verdict that counts: at the paper's own size where that was measured, else at book scale.

    Args:
        claim: The claim.

    Returns:
        The verdict.
    """
    at_full_size = recorded(claim, "paper")
    return at_full_size if at_full_size.measurement else recorded(claim, "book")


def check(result: Result, only: Sequence[str] | None = None, scale: Scale = "book") -> Report:
    """Judge everything a result measured.

    Args:
        result: A result of an experiment.
        only: Claim ids, or beginnings of claim ids, to show; default all that were measured. Whole parts win:
            ``PC-F1`` shows ``PC-F1`` and ``PC-F1-start`` and not ``PC-F10``, unless only the latter was measured.
        scale: Scale at which the result was obtained.

    Returns:
        A report; the last line of a notebook cell shows it.

    Raises:
        LedgerError: If a measured claim is not in the ledger, or ``only`` names none that was measured.
    """
    measured = result.measurements()
    named = {start: _beginning_with(start, list(measured)) for start in only or ()}
    for start, found in named.items():
        if not found:
            raise LedgerError(f"only: {start!r} was not measured; this result measured {', '.join(measured)}")
    chosen = [i for i in measured if only is None or any(i in found for found in named.values())]
    return Report(tuple(judge(claim(i), measured[i], scale) for i in chosen))


def _beginning_with(start: str, ids: Sequence[str]) -> list[str]:
    whole = [i for i in ids if f"{i}-".startswith(f"{start}-")]
    return whole or [i for i in ids if i.startswith(start)]
