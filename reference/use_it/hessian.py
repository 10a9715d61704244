"""The leading eigenvalues of the Hessian of any torch model, with error bounds."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

from attnbook.core.lanczos import leading_eigenvalues
from attnbook.core.spectrum import hessian_in_blocks

torch.manual_seed(0)
data = load_digits()
images = torch.tensor(data.images[:500, None] / 16, dtype=torch.float32)
labels = torch.tensor(data.target[:500])
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.Tanh(),
    nn.Flatten(),
    nn.Linear(8 * 36, 32),
    nn.Tanh(),
    nn.Linear(32, 10),
)


def loss(parameters):
    outputs = functional_call(model, parameters, (images,))
    return nn.functional.cross_entropy(outputs, labels)


optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(41):
    if step in (0, 40):
        product, size = hessian_in_blocks(loss, dict(model.named_parameters()))
        found = leading_eigenvalues(product, size, count=12, tolerance=1e-3)
        print(f"step {step}, of {size} eigenvalues, from {found.products} products:")
        print(f"{found.values.round(3)}, errors at most {found.residuals.max():.0e}")
    optimizer.zero_grad()
    loss(dict(model.named_parameters())).backward()
    optimizer.step()
