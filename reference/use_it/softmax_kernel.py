"""The empirical kernel of a softmax network, and what it predicts of training."""

from dataclasses import replace

import numpy as np
import torch

from attnbook.softmax_ntk import ntk, two_layer

rng = np.random.default_rng(0)
angles = torch.tensor(rng.uniform(0, 2 * np.pi, 60))
points = torch.stack([angles.cos(), angles.sin()], dim=1)[None]  # of one network
target = (2 * angles).sin()[None, None]  # one output of one network
seen, new = slice(40), slice(40, None)

weights = two_layer.draw_weights(50, n_inputs=2, n_outputs=1, rng=rng)
network = two_layer.Networks.stack("softmax", [weights])
kernel = ntk.ntk_gram(network, points[:, seen])
cross = ntk.ntk_gram(network, points[:, new], points[:, seen])
largest = torch.linalg.eigvalsh(kernel)[0, -5:]
print("largest eigenvalues of the kernel:", largest.numpy().round(2))

steps, rate = 4000, 0.02  # the rate of the kernel: step size times width
known = target[..., seen]
by_kernel = ntk.kernel_gradient_flow(kernel, known[:, 0], rate, [steps], cross=cross)[0]
for _ in range(steps):
    _, gradient = two_layer.loss_and_gradient(network, points[:, seen], known)
    moved = network.first_layer - rate / network.width * gradient
    network = replace(network, first_layer=moved)
by_network = two_layer.predict(network, points[:, new])[:, 0]
for name, values in {"kernel": by_kernel, "network": by_network}.items():
    error = (values - target[:, 0, new]).square().mean().sqrt()
    print(f"{name}: error on new points {error:.4f}")
print(f"largest difference of the two: {(by_kernel - by_network).abs().max():.1e}")
