"""Ours and two ways to train the same networks with torch: one after another, and with ``torch.func``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from problem import BOOK, Arrays, members_of, setup_of
from torch import Tensor, nn
from torch.func import grad, vmap
from worker import Seconds

from attnbook.global_attention.masks import Training, train_members


class Ours:
    """``train_members`` as the book calls it. It draws data, weights and the rows of its batches by itself.

    The clock runs from the record at step 0 to the one after the last step; with one held-out sample they cost nothing.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.settings = BOOK
        self.calls = 0

    def train(self, steps: int, dtype: str) -> tuple[Seconds, Arrays]:
        """Train all networks together."""
        self.calls += 1
        if self.calls == 2:  # as in every run of the book: after a large test set malloc keeps memory for later steps
            self._run(1, "float32", self.settings.n_test)
        return self._run(steps, dtype, n_test=1)

    def _run(self, steps: int, dtype: str, n_test: int) -> tuple[Seconds, Arrays]:
        s = self.settings
        starts: list[Seconds] = []
        history = train_members(
            members_of(s),
            setup_of(s, n_test),
            Training(steps, s.batch_size, s.step_size, record_at=(0, steps)),
            device=torch.device("cpu"),
            dtype=getattr(torch, dtype),
            progress=lambda done, total: starts.append(Seconds.now() if done == 0 else Seconds.since(starts[0])),
        )
        return starts[-1], _arrays(history.parameters)


class Network(nn.Module):
    """The network of Table 1 as a module."""

    def __init__(self, hidden: Tensor, decoder: Tensor, mask_trained: bool) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.ones_like(hidden[0]), requires_grad=mask_trained)
        self.hidden = nn.Parameter(hidden.clone())
        self.decoder = nn.Parameter(decoder.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the predictions ``(samples, outputs)``."""
        return F.linear(F.linear(inputs * self.mask, self.hidden).relu(), self.decoder)


class Loop:
    """One network after another: a module, ``backward()`` and ``torch.optim.Adam`` as they come."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def train(self, steps: int, dtype: str) -> tuple[Seconds, Arrays]:
        """Train each network from its first to its last step, then the next."""
        data = _tensors(self.arrays, dtype)
        networks = [
            Network(hidden, decoder, bool(trained))
            for hidden, decoder, trained in zip(data["hidden"], data["decoder"], data["mask_trained"], strict=True)
        ]
        start = Seconds.now()
        for number, network in enumerate(networks):
            self._train_one(network, data, data["rows"][:steps, number], float(self.arrays["penalty"][number]))
        spent = Seconds.since(start)
        names = [name for name, _ in networks[0].named_parameters()]
        return spent, _arrays({name: torch.stack([getattr(n, name).detach() for n in networks]) for name in names})

    def _train_one(self, network: Network, data: dict[str, Tensor], batches: Tensor, penalty: float) -> None:
        inputs, labels = data["inputs"], data["labels"]
        optimizer = torch.optim.Adam(network.parameters(), lr=float(self.arrays["step_size"]))
        for rows in batches:
            loss = F.mse_loss(network(inputs[rows]), labels[rows])
            if penalty:
                loss = loss + penalty * network.mask.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Vmap:
    """``torch.func``: the gradient of one network, mapped over stacked parameters.

    Of the ways to write it, the fastest we found: mask folded into the weights as in ours, ``index_select`` for the
    batches, torch's fused Adam on the stacked tensors.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def train(self, steps: int, dtype: str) -> tuple[Seconds, Arrays]:
        """Train all networks together."""
        data = _tensors(self.arrays, dtype)
        members, batch_size = data["rows"].shape[1:]
        parameters = {
            "mask": torch.ones_like(data["hidden"][:, 0]),
            "hidden": data["hidden"],
            "decoder": data["decoder"],
        }
        optimizer = torch.optim.Adam(parameters.values(), lr=float(self.arrays["step_size"]), fused=True)
        gradient = vmap(grad(_loss_of_one))
        trained = data["mask_trained"].unsqueeze(1)
        start = Seconds.now()
        for rows in data["rows"][:steps]:
            inputs = data["inputs"].index_select(0, rows.view(-1)).view(members, batch_size, -1)
            labels = data["labels"].index_select(0, rows.view(-1)).view(members, batch_size, -1)
            gradients = gradient(parameters, inputs, labels, data["penalty"])
            gradients["mask"] = gradients["mask"] * trained
            for name, tensor in parameters.items():
                tensor.grad = gradients[name]
            optimizer.step()
        return Seconds.since(start), _arrays(parameters)


def _loss_of_one(parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor, penalty: Tensor) -> Tensor:
    masked = parameters["hidden"] * parameters["mask"]
    predicted = parameters["decoder"] @ (masked @ inputs.mT).relu()
    return (predicted - labels.mT).square().mean() + penalty * parameters["mask"].abs().sum()


def _tensors(arrays: Arrays, dtype: str) -> dict[str, Tensor]:
    floats = {name: torch.tensor(array, dtype=getattr(torch, dtype)) for name, array in arrays.items()}
    return floats | {"rows": torch.as_tensor(arrays["rows"])}


def _arrays(parameters: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().numpy().copy() for name, tensor in parameters.items()}
