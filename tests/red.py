"""Red tests: every measured claim must be able to fail, or a wrong index where it is measured could survive.

The values that a rule uses are moved (:func:`can_turn`); better, the arrays behind them are (:func:`never_turned`), and
where none of the general changes turns a verdict, the experiment's test names one that must (:func:`assert_turned`):

    RED = {"XY-T1": lambda data: data.assign(loss=data.loss.isel(step=slice(None, None, -1)))}
    assert_turned(experiment.measurements, data, RED)
"""

import ast
import itertools

from attnbook import ledger
from attnbook.core.results import Measurement, plain

FACTORS = [factor for one in (1.1, 1.2, 1.5, 2, 3, 10) for factor in (one, 1 / one)]


def used(claim):
    """The measured values that a rule uses."""
    names = {node.id for node in ast.walk(ast.parse(claim.accept, mode="eval")) if isinstance(node, ast.Name)}
    return sorted(names)


def moved(values, names):
    """Each value scaled, with the other sign, a share mirrored, none or all; each pair exchanged."""
    for name in names:
        x = values[name]
        yield from ({name: factor * x} for factor in FACTORS)
        yield {name: -x}
        if 0 <= x <= 1:
            yield from ({name: other} for other in (1 - x, 0.0, 1.0))
    for one, other in itertools.combinations(names, 2):
        yield {one: values[other], other: values[one]}


def outcome(claim, measurement):
    """The outcome; None where nothing can be judged, which no change may count as."""
    try:
        return ledger.judge(claim, measurement).outcome
    except ledger.LedgerError:
        return None


def can_turn(verdict):
    """Whether some move of the values that its rule uses turns a verdict."""
    claim, values = verdict.claim, verdict.measurement.values
    names = [name for name in used(claim) if name in values]
    found = {outcome(claim, Measurement({**values, **move})) for move in moved(values, names)}
    return bool(found - {None, verdict.outcome})


def rearranged(arrays):
    """Each array scaled, with the other sign, and turned around along each axis; each pair of one shape exchanged."""
    for name, array in arrays.items():
        yield from (arrays | {name: factor * array} for factor in (10, 0.1, -1))
        for axis in range(array.ndim):
            index = tuple(slice(None, None, -1 if i == axis else None) for i in range(array.ndim))
            yield arrays | {name: array[index]}
    for (one, a), (other, b) in itertools.combinations(arrays.items(), 2):
        if a.shape == b.shape:
            yield arrays | {one: b, other: a}


def scaled(name, factor, **where):
    """A change of one array, at some labels or as a whole: by a factor, or a function of the part that gives one."""

    def changed(data):
        array = data[name].astype(float)
        part = array.loc[where]
        array.loc[where] = (factor(part) if callable(factor) else factor) * part
        return data.assign({name: array})

    return changed


def named(experiment, data):
    """Made data that name the experiment whose they could be, and its settings, as :meth:`Experiment.run` does."""
    return data.assign_attrs(experiment=experiment.id, settings=plain(experiment))


def outcomes(measure, data, only=None):
    """Claim to outcome, of some claims or of all; empty where the changed data cannot be measured."""
    try:
        measured = measure(data)
    except (ValueError, ArithmeticError, LookupError):
        return {}
    return {i: outcome(ledger.claim(i), m) for i, m in measured.items() if only is None or i in only}


def never_turned(measure, arrays):
    """The claims whose verdict no rearrangement of the arrays turns.

    Args:
        measure: Named arrays to measurements by claim id.
        arrays: What was measured: NumPy arrays by name.

    Returns:
        Claim ids.
    """
    left = honest = outcomes(measure, arrays)
    for changed in rearranged(arrays):
        found = outcomes(measure, changed)
        left = {i: o for i, o in left.items() if found.get(i) in (None, honest[i])}
    return sorted(left)


def assert_turned(measure, data, changes):
    """Check that each claim's own change turns its verdict.

    Args:
        measure: Data to measurements by claim id.
        data: What was measured, in whatever form ``measure`` takes it.
        changes: Claim id to a function that changes the data.
    """
    _assert_all_turned(measure, data, outcomes(measure, data), changes.items())


def assert_every_claim_turns(measure, data, changes, others=()):
    """Check that every claim that is measured has a change that turns its verdict, and that further changes do, too.

    Args:
        measure: Data to measurements by claim id.
        data: What was measured.
        changes: Claim id to a function that changes the data; one for each claim that is measured.
        others: Further pairs of a claim and a change, for other values of its rule.
    """
    honest = {i: outcome(ledger.claim(i), m) for i, m in measure(data).items()}
    assert set(changes) == set(honest)
    _assert_all_turned(measure, data, honest, [*changes.items(), *others])


def _assert_all_turned(measure, data, honest, changes):
    """Measure once for each change, and name all claims that stay."""
    stays = [
        f"{claim}: still {honest[claim]} after its change"
        for claim, change in changes
        if outcomes(measure, change(data), {claim}).get(claim) in (None, honest[claim])
    ]
    assert not stays, "\n".join(stays)
