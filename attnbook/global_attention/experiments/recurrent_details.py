"""What the experiment on recurrent attention looks at besides errors: weights, counts, directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.recurrent_bounds import Recurrence, felt_directions, ratio_weights, weight_counts
from attnbook.global_attention.recurrent_networks import initial_parameters, looks
from attnbook.global_attention.word_training import READERS, RECURRENCES, Reader, Task, WordSetup, answers

__all__ = [
    "CHECKED",
    "SHARES",
    "SHOWN",
    "answers_felt",
    "attention_apart",
    "count_errors",
    "delay_errors",
    "ratio_extremes",
    "weights_shown",
]

CHECKED = ("flat", "mean", "one_step", "two_steps", "three_steps")
"""Models whose felt directions are counted."""
SHARES = (1e-2, 1e-3, 1e-4)
"""Thresholds from which on a direction counts, as shares of the largest squared singular value."""
SHOWN = 3
"""Test sentences whose weights are kept."""


def count_errors() -> int:
    """Return by how much the weights of the models differ from Theorem 6's count, summed over several sizes."""
    wrong = 0
    for recurrence in RECURRENCES.values():
        for dimension, width in ((3, 5), (6, 32), (13, 7)):
            drawn = initial_parameters(recurrence, dimension, width, rng=stream(0, "count"))
            counted = sum(weight_counts(recurrence, dimension, width).values())
            wrong += abs(sum(array.size for array in drawn.values()) - counted)
    return wrong


def delay_errors() -> dict[str, float]:
    r"""Return how much the weights of two words change, against each other, when a third word changes.

    Measured as the change of $\log(\alpha_1/\alpha_2)$ at the last step, for random models with two and three steps.

    Returns:
        The largest change for each number of steps.
    """
    rng = stream(0, "delay")
    before = rng.standard_normal((1, 50, 7, 5))
    after = before.copy()
    after[:, :, 2:] = rng.standard_normal((1, 50, 5, 5))
    changed = {}
    for steps, name in ((2, "two_steps"), (3, "three_steps")):
        drawn = initial_parameters(Recurrence(steps, 11, 13), 5, 3, rng=stream(0, "delay", steps))
        parameters = {key: to_tensor(array[None], dtype=torch.float64) for key, array in drawn.items()}
        ratios = []
        for sentences in (before, after):
            *_, last = looks(parameters, to_tensor(sentences, dtype=torch.float64), steps)
            ratios.append(last.weights[0, :, 0].log() - last.weights[0, :, 1].log())
        changed[name] = float((ratios[0] - ratios[1]).abs().max())
    return changed


def ratio_extremes(
    parameters: Parameters, members: Sequence[int], sentences: Sequence[np.ndarray]
) -> Float[np.ndarray, "members 3"]:
    r"""Return the weights that two-step models would give, by ratio and by softmax.

    Args:
        parameters: Of a two-step model.
        members: Which networks.
        sentences: Test sentences of each.

    Returns:
        Smallest and largest ratio weight, smallest softmax weight, for each network.
    """
    found = []
    for member, own in zip(members, sentences, strict=True):
        chosen = {name: tensor[member : member + 1].cpu().double() for name, tensor in parameters.items()}
        *_, last = looks(chosen, to_tensor(own[None], dtype=torch.float64), 2)
        ratios = ratio_weights(last.logits.numpy())
        found.append([ratios.min(), ratios.max(), float(last.weights.min())])
    return np.array(found)


def answers_felt(
    trained: Sequence[Parameters], members: Sequence[int], count: int, seeds: Sequence[int], setup: WordSetup
) -> Float[np.ndarray, "seeds models shares"]:
    """Count, for trained networks, the directions in weight space that the answers on their training sentences feel.

    Args:
        trained: Parameters of each of the models in :data:`CHECKED`.
        members: The network of each seed.
        count: Training sentences.
        seeds: Seeds.
        setup: Sizes of the sentences.

    Returns:
        The counts, for each threshold in :data:`SHARES`.
    """
    found = np.empty((len(seeds), len(trained), len(SHARES)))
    for i, (member, seed) in enumerate(zip(members, seeds, strict=True)):
        sentences = setup.sentences(seed, "train", count)
        inputs = {"flat": sentences.reshape(count, -1), "mean": sentences.mean(1)}
        for j, (name, parameters) in enumerate(zip(CHECKED, trained, strict=True)):
            chosen = {key: tensor[member : member + 1].cpu().double() for key, tensor in parameters.items()}
            jacobian = _jacobian(READERS[name], chosen, to_tensor(inputs.get(name, sentences), dtype=torch.float64))
            found[i, j] = [felt_directions(jacobian, share) for share in SHARES]
    return found


def attention_apart(
    trained: Sequence[Parameters], tasks: Sequence[Task], seeds: Sequence[int], setup: WordSetup
) -> Float[np.ndarray, "seeds tasks sizes"]:
    """Return the share of the attention of one-step models that lies on other words than the teacher's.

    Args:
        trained: Parameters for each task; the networks of a seed lie side by side, by size.
        tasks: The tasks.
        seeds: Seeds.
        setup: Sizes of the sentences.

    Returns:
        Half the sum over words of the differences of the weights, mean over the test sentences.
    """
    shares: list[list[np.ndarray]] = []
    for seed, sentences in ((seed, setup.sentences(seed, "test", setup.n_test)) for seed in seeds):
        shares.append([])
        for task, parameters in zip(tasks, trained, strict=True):
            per_seed = len(parameters["decoder"]) // len(seeds)
            at = len(shares) - 1
            own = {name: tensor[at * per_seed : (at + 1) * per_seed].cpu() for name, tensor in parameters.items()}
            weights = next(looks(own, to_tensor(np.stack([sentences] * per_seed)), 1)).weights.double().numpy()
            truth = setup.teacher(task, seed).weights(sentences)
            shares[-1].append(np.abs(weights - truth).sum(-1).mean(-1) / 2)
    return np.array(shares)


def weights_shown(
    trained: Sequence[Parameters], tasks: Sequence[Task], seed: int, sizes: Sequence[int], setup: WordSetup
) -> dict[str, np.ndarray]:
    """Return where one-step models and their teachers look in a few test sentences.

    Args:
        trained: Parameters for each task; the networks of the first seed come first, by size.
        tasks: The tasks.
        seed: The first seed.
        sizes: Training sizes.
        setup: Sizes of the sentences.

    Returns:
        ``shown_weights (tasks, sizes, sentences, words)`` and ``shown_truth (tasks, sentences, words)``.
    """
    sentences = setup.sentences(seed, "test", setup.n_test)[:SHOWN]
    shown = to_tensor(np.stack([sentences] * len(sizes)))
    weights = []
    for parameters in trained:
        first = {name: tensor[: len(sizes)].cpu() for name, tensor in parameters.items()}
        weights.append(next(looks(first, shown, 1)).weights.double().numpy())
    truth = [setup.teacher(task, seed).weights(sentences) for task in tasks]
    return {"shown_weights": np.stack(weights), "shown_truth": np.stack(truth)}


def _jacobian(reader: Reader, parameters: Parameters, inputs: torch.Tensor) -> np.ndarray:
    """Derivative of each answer of one network with respect to each of its weights."""

    def answer(chosen: Parameters, own: torch.Tensor) -> torch.Tensor:
        return answers(reader, chosen, own[None, None]).squeeze()

    rows = torch.func.vmap(torch.func.grad(answer), in_dims=(None, 0))(parameters, inputs)
    return torch.cat([row.flatten(1) for row in rows.values()], 1).numpy()
