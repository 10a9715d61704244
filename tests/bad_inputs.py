"""Bad inputs by hypothesis, for public functions and the command line: for the tests and ``tools/faults.py``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import attnbook
from attnbook import cli, data, ledger
from attnbook.core import kernel_margin, lanczos, max_margin, rng, runtime, spectrum
from attnbook.mirror_descent import joint_directions
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import draw_problems
from attnbook.mirror_descent.optimizer import MirrorDescent
from attnbook.multi_head import certify
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.registry import experiments
from attnbook.softmax_ntk.kernels import infinite_width_kernel

# A clear message begins with the name of the argument and says what is expected of it, or what to do.
EXPECTATION = re.compile(
    r"expected|did you mean|there are|drop|has no size|this result measured|choose another|; name an|name one or"
)
WORD = st.text(st.characters(codec="ascii", categories=["Ll", "Lu", "Nd"]), min_size=1, max_size=12)
NEGATIVE = st.floats(-1e6, -1e-3)
NOT_FINITE = st.sampled_from([float("nan"), float("inf")])
NO_NUMBER = st.one_of(WORD.map("x".__add__), st.none(), st.just([]))


@dataclass(frozen=True)
class Call:
    """A call that works, and for some of its arguments what is bad."""

    function: Callable[..., Any]
    good: dict[str, Any]
    bad: dict[str, st.SearchStrategy[Any]] = field(hash=False)


def spoiled(array: np.ndarray, free: int | None = None) -> st.SearchStrategy[np.ndarray]:
    """The array with an entry that is not finite, an axis too few, too many, or of a wrong length."""
    places = st.tuples(*(st.integers(0, n - 1) for n in array.shape))
    as_numbers = array.astype(np.float64)

    def with_entry(place: tuple[int, ...], value: float) -> np.ndarray:
        changed = as_numbers.copy()
        changed[place] = value
        return changed

    axes = st.integers(0, array.ndim - 1)
    longer = axes.filter(lambda axis: axis != free).map(
        lambda axis: np.concatenate([array, array.take([0], axis)], axis)
    )
    return st.one_of(
        st.builds(with_entry, places, NOT_FINITE), st.just(array[0]), st.just(array[None, None]), longer,
        axes.map(lambda axis: array.take([], axis)),
    )  # fmt: skip


def calls() -> list[Call]:
    """The functions that take arrays or settings from outside."""
    one, draw = draw_problems([0]), np.random.default_rng(0)
    tokens, queries, best = one.tokens[0], one.queries[0], one.best_tokens
    labels = np.where(np.arange(len(tokens)) % 2, 1.0, -1.0)
    head, key_query = draw.standard_normal(tokens.shape[2]), draw.standard_normal((tokens.shape[2],) * 2)
    start = {"decoder": np.zeros((1, *tokens.shape[1:])), "key_query": np.zeros((1, *key_query.shape))}
    gram, result = np.eye(3), experiments()["implicit_bias.direction"].load_stored("book")
    small = NEGATIVE | NOT_FINITE
    below_1 = st.integers(-99, 0)
    other_label = st.sampled_from([0.0, 2.0, np.nan]).map(lambda x: np.append(labels[1:], x))
    shapes = {"tokens": spoiled(tokens, free=1), "queries": spoiled(queries), "labels": spoiled(labels) | other_label}
    weight = torch.nn.Parameter(torch.ones(2))
    at = [Call(kind.at, {}, {"size": WORD.map("x".__add__), "steeps": st.just(3), "seeds": st.one_of(
        st.just(()), st.just((0, 0)), st.lists(st.integers(max_value=-1), min_size=1), st.floats(), WORD),
        "chunk": below_1 | WORD})
        for kind in list(experiments().values())[::12]]  # fmt: skip
    return [
        Call(certify, {"tokens": tokens, "labels": labels, "start": start, "n_heads": 1e6}, {
            "tokens": spoiled(tokens), "labels": spoiled(labels) | other_label, "n_heads": small | WORD,
            "targets": st.integers(-9, 1),
            "start": st.sampled_from([{}, {"decoder": start["decoder"]}, start | {"decoder": np.zeros((1, 2, 2))}])}),
        Call(joint_directions, {"tokens": tokens, "queries": queries, "labels": labels, "head": head,
                                "key_query": key_query}, shapes | {
            "head": spoiled(head), "key_query": spoiled(key_query), "p": small | st.floats(0, 1)}),
        Call(attention_svm, {"tokens": one.tokens, "queries": one.queries, "selected": best, "p": 2.0}, {
            "tokens": spoiled(one.tokens, free=2), "queries": spoiled(one.queries), "p": small | st.floats(0, 1),
            "selected": spoiled(best) | st.integers(8, 99).map(lambda k: best + k)}),
        Call(max_margin.max_margin, {"constraints": np.ones((1, 2, 3)), "p": 2.0}, {
            "constraints": spoiled(np.ones((1, 2, 3))).filter(lambda a: a.ndim != 3 or not a.size or np.isnan(a).any()),
            "p": small | st.floats(0, 1), "right": spoiled(np.ones((1, 2))) | st.just(np.zeros((1, 2)))}),
        Call(kernel_margin.kernel_margin, {"gram": gram, "labels": np.ones(3)}, {
            "gram": spoiled(gram) | st.just(gram + np.triu(gram[::-1])),
            "labels": spoiled(np.ones(3)) | st.just(gram[0])}),
        Call(MirrorDescent, {"params": [weight], "lr": 0.1}, {
            "lr": small, "p": small | st.floats(0, 1), "momentum": small | st.floats(1, 9), "weight_decay": small,
            "params": st.just([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])}),
        Call(spectral_init, {"x": torch.randn(9, 3), "y": torch.randn(9, 3)}, {
            "x": st.sampled_from([torch.ones(3), torch.ones(9, 3).int(), torch.full((9, 3), torch.nan)]),
            "y": st.sampled_from([torch.ones(3), torch.ones(8, 3), torch.full((9, 3), torch.inf)])}),
        Call(infinite_width_kernel, {"activation": "exp", "inputs": gram}, {
            "activation": WORD.map("x".__add__), "scale": small | st.just(0.0),
            "inputs": st.builds(lambda a: a + np.diag([np.nan, 0, 0]), st.just(gram))}),
        Call(lanczos.leading_eigenvalues, {"product": lambda v: v, "size": 5, "count": 2}, {
            "count": below_1 | st.integers(6, 99), "block": below_1, "tolerance": small | st.floats(1, 9),
            "most_products": st.integers(-9, 9), "product": st.just(lambda v: v * np.nan)}),
        Call(spectrum.extreme_eigenvalues, {"product": lambda v: v, "size": 5}, {
            "size": below_1, "tolerance": small | st.floats(1, 9), "most_products": below_1}),
        Call(partial(ledger.check, result), {}, {"only": st.lists(WORD.map("x".__add__), min_size=1)}),
        Call(ledger.claim, {}, {"claim_id": WORD.map("x".__add__)}),
        Call(data.train_embeddings, {"texts": ["a b", "b a"] * 9, "dimension": 1}, {
            "dimension": below_1 | st.integers(2, 99), "n_words": below_1, "min_count": below_1, "window": below_1,
            "context_power": small | st.just(0.0) | st.floats(1.1, 9),
            "texts": st.sampled_from([[], ["!"], ["a", "b"] * 9])}),
        Call(data.embeddings, {}, {"name": st.sampled_from(["", "../x", "a/b", ".x", "a b"])}),
        Call(data.imdb, {}, {"splits": st.sampled_from([(), ("valid",), "train"]) | st.lists(WORD, min_size=1)}),
        Call(data.fetch, {}, {"name": WORD.map("x".__add__)}),
        Call(runtime.use, {}, {"size": WORD.map("x".__add__), "device": WORD.map("x".__add__)}),
        Call(lambda count: runtime.threads(count).__enter__(), {}, {"count": below_1 | WORD | st.floats() | st.none()}),
        Call(rng.stream, {}, {"seed": st.integers(-99, -1) | st.floats() | WORD | st.booleans() | st.none()}),
        Call(attnbook.check, {"answer": len}, {"exercise": WORD.map("x".__add__)}),
        *at,
    ]  # fmt: skip


def complaint(call: Call, name: str, value: Any) -> str:
    """What is not clear about the error of a bad input; empty where it is."""
    try:
        call.function(**call.good | {name: value})
    except (ValueError, TypeError) as error:
        message = str(error)
        named = message.startswith(tuple({name, *call.good}))  # of two arrays that do not fit, either may be wrong
        return "" if named and EXPECTATION.search(message) else f"unclear: {type(error).__name__}: {message}"
    except Exception as error:
        return f"another error: {type(error).__name__}: {error}"
    return "accepted"


@st.composite
def bad_calls(draw: Any, known: Sequence[Call]) -> tuple[Call, str, Any]:
    """A call with one bad argument."""
    call = known[draw(st.integers(0, len(known) - 1))]
    name = draw(st.sampled_from(sorted(call.bad)))
    return call, name, draw(call.bad[name])


def some(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Draw so many, the same ones at any time."""
    drawn: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(value: Any) -> None:
        drawn.append(value)

    collect()
    return drawn


def of_functions(count: int) -> list[str]:
    """Try bad inputs of functions; return complaints, empty where an error was clear."""
    found = []
    for call, name, value in some(bad_calls(calls()), count):
        wrong = complaint(call, name, value)
        label = getattr(call.function, "__qualname__", "?")
        found.append(f"{wrong}; {label}({name}={value!r})"[:400] if wrong else "")
    return found


def command_lines(folder: Path) -> st.SearchStrategy[tuple[list[str], dict[str, str]]]:
    """Command lines, each with one bad argument or variable of the environment."""
    run = ["run", "implicit_bias.direction", "--size", "smoke", "--device", "cpu"]
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20).map("x".__add__)
    (folder / "file").write_text("mine", encoding="utf-8")
    place = st.sampled_from([str(folder / "file" / "a.json"), str(folder), str(folder / ("a" * 300)), "/proc/a/b.json"])
    bad_options = [
        (run[:1], text), (["run", "--paper"], text), ([*run, "--on"], text | st.just("processes:0")), (run[:3], text),
        ([*run[:2], "--device"], text), ([*run, "--output"], place), (["run", "--all", run[1]], text),
        (["list", "--paper"], text), (["list", "--outcome"], text), (["list", "--source"], text),
        (["show"], text), (["verify"], text), (["verify", "--paper"], text), (["verify", "--device"], text),
        (["verify", "--fresh", "--sets"], st.integers(-99, 0).map(str)), (["data", "fetch"], text),
        (["data", "train-vectors", "--dimension"], st.integers(-99, 0).map(str) | text),
        (["new", "paper"], text.map("no name ".__add__)),
        ([], text), (["list", "--json"], text), (["doctor"], text), (["verify", "--size"], text),
    ]  # fmt: skip
    bad_variables = [
        (run[:2], "ATTNBOOK_SIZE", text), (["data"], "ATTNBOOK_OFFLINE", text), (["data"], "ATTNBOOK_DATA", text),
        (run, "ATTNBOOK_RESULTS", place.filter(lambda p: p != str(folder))),
    ]  # fmt: skip
    options = [value.map(lambda v, start=start: ([*start, v], {})) for start, value in bad_options]
    variables = [value.map(lambda v, s=start, n=name: (s, {n: v})) for start, name, value in bad_variables]
    return st.one_of(*options, *variables)


def of_commands(count: int, folder: Path) -> list[str]:
    """Try bad command lines; return complaints, empty where there was one clear line and nothing else."""
    found = []
    usual = {"ATTNBOOK_RESULTS": str(folder / "results"), "ATTNBOOK_CACHE": str(folder / "cache"), "COLUMNS": "500"}
    usual |= {"ATTNBOOK_DATA": "", "ATTNBOOK_OFFLINE": "1", "ATTNBOOK_SIZE": "book"}
    for arguments, variables in some(command_lines(folder), count):
        done = CliRunner(env=usual | variables).invoke(cli.app, arguments)
        files = [str(path) for path in folder.rglob("*") if path.is_file() and path.name != "file"]
        ours = len(done.stderr.splitlines()) == 1 and done.stderr.startswith("attnbook: ")
        clear = (ours and EXPECTATION.search(done.stderr)) or "Usage: " in done.stderr
        wrong = done.exit_code != 2 or not clear or "Traceback" in done.output or files
        said = f"{done.exit_code} {done.exception!r} {files} {done.output}: {arguments} {variables}"
        found.append(said[:400] if wrong else "")
    return found
