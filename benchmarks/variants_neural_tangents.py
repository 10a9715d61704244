"""The kernel of a softmax network by neural-tangents, in an environment of its own: see README.md."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from worker import Seconds

jax.config.update("jax_enable_x64", True)


class JacobianContraction:
    """``empirical_ntk_fn`` with both outputs kept, compiled."""

    implementation: ClassVar[Any] = nt.NtkImplementation.JACOBIAN_CONTRACTION

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.first, self.signs, self.inputs = (jnp.asarray(arrays[n]) for n in ("first_layer", "signs", "inputs"))
        self.program: Any = None

    def train(self, steps: int, dtype: str) -> tuple[Seconds, dict[str, np.ndarray]]:
        """Return the kernel so many times, output-major and divided by the width, as ours is."""
        if dtype != "float64":
            raise ValueError("dtype: kernels are compared in float64")
        width, signs = self.first.shape[1], self.signs

        def outputs(weights: jax.Array, x: jax.Array) -> jax.Array:
            return width * jax.nn.softmax(x @ weights, axis=1) @ signs.T

        kernel = nt.empirical_ntk_fn(outputs, trace_axes=(), vmap_axes=0, implementation=self.implementation)
        compiled = 0.0
        if self.program is None:
            start = Seconds.now()
            self.program = jax.jit(lambda x, w: kernel(x, None, w)).lower(self.inputs, self.first).compile()
            compiled = Seconds.since(start).wall
        start = Seconds.now()
        for _ in range(steps):
            found = jax.block_until_ready(self.program(self.inputs, self.first))
        spent = Seconds.since(start)
        rows = len(signs) * len(self.inputs)
        ordered = np.asarray(found).transpose(2, 0, 3, 1).reshape(rows, rows) / width
        return Seconds(spent.wall, spent.cpu, compiled), {"kernel": ordered}


class VectorProducts(JacobianContraction):
    """The same by products of the kernel with vectors."""

    implementation: ClassVar[Any] = nt.NtkImplementation.NTK_VECTOR_PRODUCTS
