"""Token selection by normalised gradient descent in JAX: all steps as one compiled program, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Seconds

jax.config.update("jax_enable_x64", True)


class Selection:
    """``jit(scan(vmap(grad)))`` of the loss of one problem, with the usual softmax."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.step_size = float(arrays["step_size"])
        self.problems = tuple(jnp.asarray(arrays[name]) for name in ("tokens", "queries", "labels", "decoder"))
        self.compiled: dict[int, tuple[float, Any]] = {}

    def train(self, steps: int, dtype: str) -> tuple[Seconds, dict[str, np.ndarray]]:
        """Train all problems together; a program is compiled once for each number of steps."""
        if dtype != "float64":
            raise ValueError("dtype: normalised steps are measured in float64")
        tokens = self.problems[0]
        weights = jnp.zeros((tokens.shape[0], tokens.shape[-1], tokens.shape[-1]))

        def run(weights: jax.Array, problems: tuple[jax.Array, ...]) -> jax.Array:
            def step(weights: jax.Array, _: None) -> tuple[jax.Array, None]:
                gradients = jax.vmap(jax.grad(_loss_of_one))(weights, *problems)
                lengths = jnp.sqrt(jnp.square(gradients).sum((1, 2), keepdims=True))
                return weights - self.step_size * gradients / lengths, None

            return jax.lax.scan(step, weights, None, length=steps)[0]

        if steps not in self.compiled:
            start = Seconds.now()
            program = jax.jit(run).lower(weights, self.problems).compile()
            self.compiled[steps] = (Seconds.since(start).wall, program)
        seconds, program = self.compiled[steps]
        start = Seconds.now()
        trained = jax.block_until_ready(program(weights, self.problems))
        spent = Seconds.since(start)
        return Seconds(spent.wall, spent.cpu, seconds), {"key_query": np.asarray(trained)}


def _loss_of_one(w: jax.Array, x: jax.Array, z: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    attention = jax.nn.softmax(jnp.einsum("ntd,de,ne->nt", x, w, z), axis=1)
    return jax.nn.softplus(-y * jnp.einsum("nt,ntd,d->n", attention, x, v)).mean()
