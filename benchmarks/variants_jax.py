"""The same networks in JAX: all steps as one compiled program. Runs in an environment of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Seconds

Tree = dict[str, jax.Array]


class Jax:
    """``jit(scan(vmap(grad)))`` with Adam written on trees; the fastest of the forms we tried."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.compiled: dict[tuple[int, str], tuple[float, Any]] = {}

    def train(self, steps: int, dtype: str) -> tuple[Seconds, dict[str, np.ndarray]]:
        """Train all networks together; a program is compiled once for each number of steps."""
        if dtype == "float64":
            raise ValueError("dtype: JAX is measured and checked in float32")
        data = {name: jnp.asarray(array, dtype) for name, array in self.arrays.items() if name != "rows"}
        rows = jnp.asarray(self.arrays["rows"][:steps], "int32")
        parameters = {"mask": jnp.ones_like(data["hidden"][:, 0]), "hidden": data["hidden"], "decoder": data["decoder"]}
        if (steps, dtype) not in self.compiled:
            start = Seconds.now()
            program = jax.jit(_train).lower(parameters, data, rows).compile()
            self.compiled[steps, dtype] = (Seconds.since(start).wall, program)
        seconds, program = self.compiled[steps, dtype]
        start = Seconds.now()
        trained = jax.block_until_ready(program(parameters, data, rows))
        spent = Seconds.since(start)
        return Seconds(spent.wall, spent.cpu, seconds), {name: np.asarray(tensor) for name, tensor in trained.items()}


def _loss_of_one(parameters: Tree, inputs: jax.Array, labels: jax.Array, penalty: jax.Array) -> jax.Array:
    masked = parameters["hidden"] * parameters["mask"]
    predicted = parameters["decoder"] @ jax.nn.relu(masked @ inputs.T)
    return jnp.square(predicted - labels.T).mean() + penalty * jnp.abs(parameters["mask"]).sum()


def _train(parameters: Tree, data: Tree, rows: jax.Array) -> Tree:
    def step(state: tuple[Tree, Tree, Tree, jax.Array], rows: jax.Array) -> tuple[tuple, None]:
        parameters, first, second, count = state
        gradient = jax.vmap(jax.grad(_loss_of_one))
        gradients = gradient(parameters, data["inputs"][rows], data["labels"][rows], data["penalty"])
        gradients["mask"] = gradients["mask"] * data["mask_trained"][:, None]
        return _adam(parameters, gradients, first, second, count + 1, data["step_size"]), None

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return jax.lax.scan(step, (parameters, zeros, zeros, jnp.zeros(())), rows)[0][0]


def _adam(
    parameters: Tree, gradients: Tree, first: Tree, second: Tree, count: jax.Array, step_size: jax.Array
) -> tuple:
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    scale = step_size / (1 - 0.9**count)
    root = jnp.sqrt(1 - 0.999**count)
    parameters = jax.tree.map(lambda q, m, v: q - scale * m / (jnp.sqrt(v) / root + 1e-8), parameters, first, second)
    return parameters, first, second, count
