"""Run the functions of "Use it in your work" at sizes that are large for a laptop, and write the table of their costs.

``python benchmarks/scale.py``           tries all rows and prints them
``python benchmarks/scale.py --store``   writes ``scale.json`` and ``scale.md``, which the page shows
``python benchmarks/scale.py kernel``    only the rows whose name has this word
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer
from measuring import HERE, markdown_table, provenance
from torch import nn
from torch.func import functional_call, stack_module_state
from worker import Seconds, peak_memory

from attnbook.core import ensemble, update_rules
from attnbook.core.lanczos import leading_eigenvalues
from attnbook.core.max_margin import max_margin
from attnbook.core.runtime import threads
from attnbook.core.spectrum import hessian_in_blocks
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.optimizer import MirrorDescent
from attnbook.preconditioning.attention import in_sample_loss_and_gradient
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights

STORED = HERE / "scale.json"
COLUMNS = ("what", "wall, s", "CPU, s", "peak memory, MiB", "what came out")
IMPORTS = "nothing: the imports alone"
Run = Callable[[], str]


def attention(p: float) -> Run:
    """Pick tokens with a key-query matrix of 100 x 100 = 10,000 entries, under 250 x 20 = 5,000 constraints."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((1, 250, 21, 100))
    selected = rng.integers(21, size=(1, 250))

    def run() -> str:
        found = attention_svm(tokens, tokens[:, :, 0], selected, p)
        return f"gap {found.gap[0]:.0e}, {found.support.sum()} support tokens"

    return run


def dense_rows() -> Run:
    """Solve a problem whose 5,000 rows of 10,000 entries are no outer products."""
    rows = np.random.default_rng(0).standard_normal((1, 5000, 10_000))

    def run() -> str:
        found = max_margin(rows, 2.0)
        return f"gap {found.gap[0]:.0e}, {(found.multipliers > 0).sum()} support rows"

    return run


def kernel() -> Run:
    """Make a kernel of 2,000 inputs and the weights of kernel regression."""
    rng = np.random.default_rng(0)
    inputs = torch.tensor(rng.standard_normal((1, 2000, 20)) / 20**0.5)
    labels = torch.tensor(rng.standard_normal((1, 2000)))
    network = Networks.stack("softmax", [draw_weights(4096, 20, 1, rng=rng)])

    def run() -> str:
        gram = ntk_gram(network, inputs)
        weights = torch.cholesky_solve(labels.unsqueeze(2), torch.linalg.cholesky(gram))
        residual = (gram @ weights).squeeze(2) - labels
        return f"labels met to {residual.abs().max().item():.0e}"

    return run


def in_sample(samples: int = 50_000) -> Run:
    """Take the gradient of a layer in which each of 50,000 samples attends to all."""
    rng = np.random.default_rng(0)
    x, y = (torch.tensor(rng.standard_normal((samples, d)), dtype=torch.float32) for d in (5, 8))
    value, key_query = (torch.tensor(rng.standard_normal((d, 5)) / 5, dtype=torch.float32) for d in (8, 5))

    def run() -> str:
        loss, _ = in_sample_loss_and_gradient(value, key_query, x, y)
        return f"loss {loss:.4f}; all weights at once: {4 * samples**2 / 2**30:.0f} GiB"

    return run


def members(count: int = 10_000) -> Run:
    """Train 10,000 networks for 100 steps."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(count)]
    parameters, _ = stack_module_state(models)
    x = torch.randn(64, 2)
    y = x.prod(1, keepdim=True).sign()

    def loss(own: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return nn.functional.softplus(-y * functional_call(models[0], own, (x,))).mean()

    losses = torch.vmap(loss, in_dims=(0, None))

    def run() -> str:
        history = ensemble.train(
            ensemble.autograd(losses), parameters, lambda step: None, optimizer=update_rules.Adam(0.05), steps=100,
            record=lambda now: {"loss": losses(now, None)},
        )  # fmt: skip
        first, *_, last = np.median(history.records["loss"], axis=1)
        return f"median loss from {first:.2f} to {last:.2f}"

    return run


def hessian() -> Run:
    """Find the ten largest of a million eigenvalues."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 1000), nn.Tanh(), nn.Linear(1000, 220), nn.Tanh(), nn.Linear(220, 10))
    x, y = torch.randn(256, 784), torch.randint(10, (256,))

    def run() -> str:
        product, size = hessian_in_blocks(
            lambda own: nn.functional.cross_entropy(functional_call(model, own, (x,)), y),
            dict(model.named_parameters()),
        )
        found = leading_eigenvalues(product, size, 10, dtype=torch.float32)
        return f"{size:,} parameters, {found.products} products"

    return run


def optimizer() -> Run:
    """Take ten steps of mirror descent with ten million weights."""
    weight = nn.Parameter(torch.randn(10_000_000, generator=torch.Generator().manual_seed(0)))
    weight.grad = weight.detach().clone()
    rule = MirrorDescent([weight], lr=0.01, p=1.5, momentum=0.9)

    def run() -> str:
        for _ in range(10):
            rule.step()
        return f"norm {weight.detach().abs().pow(1.5).sum().item() ** (1 / 1.5):.0f}"

    return run


ROWS: dict[str, Callable[[], Run]] = {
    IMPORTS: lambda: lambda: "",
    "attention SVM, p = 2: 5,000 constraints x 10,000 entries": lambda: attention(2.0),
    "attention SVM, p = 1.5: 5,000 constraints x 10,000 entries": lambda: attention(1.5),
    "attention SVM, p = 3: 5,000 constraints x 10,000 entries": lambda: attention(3.0),
    "largest margin, p = 2, dense rows: 5,000 x 10,000": dense_rows,
    "kernel of a softmax network of 4,096 neurons with 2,000 inputs, and its regression": kernel,
    "in-sample gradient of attention, 50,000 samples": in_sample,
    "10,000 networks of 33 weights, 100 steps of Adam on 64 samples": members,
    "ten leading eigenvalues of the Hessian of a network with a million weights, 256 samples": hessian,
    "ten steps of mirror descent, p = 1.5, ten million weights": optimizer,
}


def measure(name: str) -> dict[str, Any]:
    """Run one row on one thread; the time is that of the run alone, without making its data."""
    with threads(1):
        run = ROWS[name]()
        start = Seconds.now()
        said = run()
        spent = Seconds.since(start)
    return {"wall": round(spent.wall, 2), "cpu": round(spent.cpu, 2), "memory": round(peak_memory()), "said": said}


def as_markdown(stored: dict[str, Any]) -> str:
    """Return the table with where it was measured."""
    rows = [
        (name, f"{row['wall']:.1f}", f"{row['cpu']:.1f}", f"{row['memory']}", row["said"])
        for name, row in stored["rows"].items()
    ]
    missing = "; ".join(name for name in ROWS if name not in stored["rows"])
    where = ", ".join(f"{name} {value}" for name, value in stored["provenance"].items())
    return (
        "<!-- Written by benchmarks/scale.py from scale.json. -->\n\n"
        f"{markdown_table(COLUMNS, rows)}\n\n"
        "One run each, on one thread, in a process of its own. The time is that of the call, without drawing its data; "
        "the memory is the largest of the whole process, data and imports included. Where the wall clock shows far "
        "more than the processor time, other programs ran beside.\n\n"
        + (f"Not measured yet: {missing}.\n\n" if missing else "")
        + f"Measured with {where}.\n"
    )


def with_stored(measured: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured now, and for the other rows what is stored, be it by another run meanwhile."""
    old = json.loads(STORED.read_text(encoding="utf-8"))["rows"] if STORED.exists() else {}
    rows = old | measured
    return {"rows": {name: rows[name] for name in ROWS if name in rows}, "provenance": provenance(None)}


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Words in the names of rows; default all rows.")] = None,
    store: Annotated[bool, typer.Option("--store", help="Write the table.")] = False,
) -> None:
    """Measure, and print the table; rows that were not asked for keep what was stored."""
    measured = {}
    for name in ROWS:
        if not words or any(word in name for word in words):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                measured[name] = pool.apply(measure, (name,))
            if store:  # after each: a run that is cut off keeps its rows
                stored = with_stored(measured)
                STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
                (HERE / "scale.md").write_text(as_markdown(stored), encoding="utf-8")
    print(as_markdown(with_stored(measured)))


if __name__ == "__main__":
    typer.run(main)
