"""The empirical kernel of a softmax network, what it predicts, and what the trained network says."""

from dataclasses import replace

import numpy as np
import torch

from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict

rng = np.random.default_rng(0)
angles = torch.tensor(rng.uniform(0, 2 * np.pi, 60))
points = torch.stack([angles.cos(), angles.sin()], dim=1)[None]  # one network, 60 points on the circle
target = (2 * angles).sin()[None, None]  # one network, one output
seen, new = slice(40), slice(40, None)

network = Networks.stack("softmax", [draw_weights(50, n_inputs=2, n_outputs=1, rng=rng)])
kernel = ntk_gram(network, points[:, seen])
cross = ntk_gram(network, points[:, new], points[:, seen])
print("largest eigenvalues of the kernel:", torch.linalg.eigvalsh(kernel)[0].flip(0)[:5].numpy().round(2))

steps, rate = 4000, 0.02  # the rate of the kernel: step size times width
by_kernel = kernel_gradient_flow(kernel, target[:, 0, seen], rate, [steps], cross=cross)[0]
for _ in range(steps):
    _, gradient = loss_and_gradient(network, points[:, seen], target[..., seen])
    network = replace(network, first_layer=network.first_layer - rate / network.width * gradient)
by_network = predict(network, points[:, new])[:, 0]
for name, values in {"kernel": by_kernel, "network": by_network}.items():
    print(f"{name}: error on new points {(values - target[:, 0, new]).square().mean().sqrt():.4f}")
print(f"between the two: {(by_kernel - by_network).square().mean().sqrt():.1e}")
