"""A thousand small models with starts and step sizes of their own, as one program."""

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from attnbook.core import ensemble, update_rules

torch.manual_seed(0)
models = [
    nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(1000)
]
parameters, _ = stack_module_state(models)  # each tensor: (1000, ...)
rates = np.repeat([0.001, 0.01, 0.1, 0.3], 250)  # equal neighbours share an update
x = torch.randn(64, 2)
y = (x[:, :1] * x[:, 1:]).sign()  # exclusive or


def loss(own, batch):  # of one model
    inputs, labels = batch
    outputs = functional_call(models[0], own, (inputs,))
    return nn.functional.softplus(-labels * outputs).mean()


losses = torch.vmap(loss, in_dims=(0, None))
history = ensemble.train(
    ensemble.autograd(losses),
    parameters,
    lambda step: (x, y),
    optimizer=update_rules.Adam(rates),
    steps=300,
    record=lambda now: {"loss": losses(now, (x, y))},
    record_at=[0, 30, 300],
)
for rate in np.unique(rates):
    median = np.median(history.records["loss"][:, rates == rate], axis=1)
    print(f"step size {rate}: median loss {median.round(4)} at steps {history.steps}")
