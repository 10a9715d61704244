"""Softmax networks and self-attention: kernel and gradients in closed form, beside automatic differentiation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from side_by_side import Case, InJax
from torch import Tensor
from torch.func import grad, jacrev, vmap

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.self_attention import draw_layer, loss_and_gradients
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient

SEEDS, WIDTH, SAMPLES = 20, 512, 16


def cases() -> list[Case]:
    """Return the comparisons of closed forms."""
    return [kernel(), gradient(), gradient(members=1, width=256, n_samples=32, aim=3.0), attention_gradient()]


def kernel() -> Case:
    """Compare the closed-form kernel with the product of Jacobians, and with neural-tangents."""
    networks, inputs, _ = stack(1, width=2048, n_samples=128, n_inputs=16, n_outputs=4)
    first, signs, x = networks.first_layer[0], networks.signs[0], inputs[0]

    def output(weights: Tensor, one: Tensor) -> Tensor:
        return len(signs[0]) * (signs @ torch.softmax(weights.T @ one, dim=0))

    def product_of_jacobians() -> np.ndarray:
        rows = vmap(jacrev(output), (None, 0))(first, x).transpose(0, 1).flatten(0, 1).flatten(1)
        return (rows @ rows.T / len(signs[0])).numpy()

    arrays = {"first_layer": first.numpy(), "signs": signs.numpy(), "inputs": x.numpy()}
    module = "variants_neural_tangents"
    return Case(
        title="Neural tangent kernel of a softmax network",
        what="The kernel of 128 samples and 4 outputs of a network with 2048 neurons and 16 inputs, in float64.",
        variants={
            "closed form (ours)": lambda: ntk_gram(networks, inputs)[0].numpy(),
            "torch.func: vmap(jacrev), then the product": product_of_jacobians,
        },
        tolerance=1e-10,
        aim={
            "torch.func: vmap(jacrev), then the product": 10.0,
            "neural-tangents: Jacobian contraction": 10.0,
            "neural-tangents: NTK-vector products": 10.0,
        },
        in_jax={
            "neural-tangents: Jacobian contraction": InJax(
                (module, "JacobianContraction"), arrays, 1, "kernel", needs="neural_tangents"
            ),
            "neural-tangents: NTK-vector products": InJax(
                (module, "VectorProducts"), arrays, 1, "kernel", needs="neural_tangents"
            ),
        },
    )


def gradient(members: int = SEEDS, width: int = WIDTH, n_samples: int = SAMPLES, aim: float | None = None) -> Case:
    """Compare the closed-form gradient of networks, or of one, with automatic differentiation, batched as well."""
    paired, inputs, labels = stack(members, width, n_samples, n_samples, 1)
    away = torch.from_numpy(stream(0, "benchmark", "away").standard_normal(paired.first_layer.shape))
    networks = replace(paired, first_layer=paired.first_layer + 0.1 * away)  # where outputs and centring are not zero
    start = networks.first_layer
    many = members > 1

    def loss(weights: Tensor, signs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (width * signs @ torch.softmax(x @ weights, dim=-1).mT - y).square().sum((-2, -1))

    def autograd() -> np.ndarray:
        leaf = start.clone().requires_grad_()
        loss(leaf, networks.signs, inputs, labels).sum().backward()
        return leaf.grad.numpy()

    def products_alone() -> np.ndarray:
        """The floor: four matrix products and a softmax, without checks and without the loss."""
        neurons = torch.softmax(torch.bmm(inputs, start), 2).mul_(width)
        outputs = torch.bmm(networks.signs, neurons.mT)
        residual = outputs - labels
        back = torch.bmm(residual.mT, networks.signs).sub_((residual * outputs).sum(1).div_(width).unsqueeze(2))
        return torch.bmm(inputs.mT, back.mul_(neurons)).numpy()

    floor = {} if many else {"four products and a softmax alone (floor)": products_alone}
    return Case(
        title="Gradient of softmax networks" if many else "Gradient of one softmax network",
        what=f"One gradient of {f'{members} networks together' if many else 'one network'}, {width} neurons and "
        f"{n_samples} samples each, float64.",
        variants={
            "closed form (ours)": lambda: loss_and_gradient(networks, inputs, labels)[1].numpy(),
            "torch.autograd, batched": autograd,
            "torch.func: vmap(grad)": lambda: vmap(grad(loss))(start, networks.signs, inputs, labels).numpy(),
            **floor,
        },
        tolerance=1e-10,
        aim={} if aim is None else {"torch.autograd, batched": aim},
        repeat=20,
    )


def attention_gradient(members: int = 20, n_sequences: int = 32, length: int = 16, dimension: int = 16) -> Case:
    """Compare both gradients of self-attention layers, in closed form, with automatic differentiation."""
    layers = [draw_layer(dimension, dimension, rng=stream(s, "benchmark")) for s in range(members)]
    key_query, value = (torch.from_numpy(np.stack(weights)) for weights in zip(*layers, strict=True))
    rng = stream(0, "benchmark", "tokens")
    tokens = torch.from_numpy(rng.standard_normal((members, n_sequences, length, dimension)))
    labels = torch.from_numpy(rng.standard_normal((members, n_sequences * length, dimension)))

    def loss(m: Tensor, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        rows = torch.softmax(x @ m @ x.mT, dim=-1) @ (x @ v)
        return (rows.flatten(0, 1) - y).square().sum() / (2 * len(y))

    def ours() -> np.ndarray:
        found = loss_and_gradients(key_query, value, tokens, labels)
        return torch.cat([found.key_query, found.value], dim=1).numpy()

    def autograd() -> np.ndarray:
        m, v = (t.clone().requires_grad_() for t in (key_query, value))
        asked = (tokens.flatten(1, 2) @ m).unflatten(1, (n_sequences, length))
        rows = ((torch.softmax(asked @ tokens.mT, dim=-1) @ tokens).flatten(1, 2)) @ v
        ((rows - labels).square().sum() / (2 * labels.shape[1])).backward()
        return torch.cat([m.grad, v.grad], dim=1).numpy()

    def per_layer() -> np.ndarray:
        return torch.cat(vmap(grad(loss, argnums=(0, 1)))(key_query, value, tokens, labels), dim=1).numpy()

    return Case(
        title="Gradient of self-attention layers",
        what=f"Both gradients of {members} layers, each on {n_sequences} sequences of {length} tokens with {dimension} "
        "entries and as many outputs, float64.",
        variants={
            "closed form (ours)": ours,
            "torch.autograd, batched, the same products": autograd,
            "torch.func: vmap(grad)": per_layer,
        },
        tolerance=1e-10,
        aim={},
        repeat=5,
    )


def stack(members: int, width: int, n_samples: int, n_inputs: int, n_outputs: int) -> tuple[Networks, Tensor, Tensor]:
    """Return networks side by side, with inputs and labels of each."""
    weights = [draw_weights(width, n_inputs, n_outputs, rng=stream(s, "benchmark")) for s in range(members)]
    drawn = [draw_sample(n_samples, n_inputs, n_outputs, seed=s) for s in range(members)]
    inputs, labels = (torch.from_numpy(np.stack([getattr(d, name) for d in drawn])) for name in ("inputs", "labels"))
    return Networks.stack("softmax", weights), inputs, labels
