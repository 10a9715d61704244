"""The stacked transformer against torch's own modules and a plain loop; the rule that mixes two optimisers."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnbook.core import ensemble
from attnbook.mirror_descent.optimizer import MirrorDescent
from attnbook.mirror_descent.real_text_and_images import comparison
from attnbook.mirror_descent.real_text_and_images import transformer as models
from attnbook.mirror_descent.real_text_and_images.attention_rule import AttentionRule
from attnbook.mirror_descent.real_text_and_images.transformer import Inputs, Shape

SHAPES = {
    "frozen": Shape("frozen", 6, 5, 3, width=6, n_heads=2),
    "projected": Shape("projected", 7, 5, 2, width=6, n_heads=3),
    "deep": Shape("projected", 7, 5, 3, width=6, n_heads=2, n_layers=3),
}
SEEDS = (3, 4)


def drawn(shape, members_per_seed=2):
    rng = np.random.default_rng(0)
    parameters = models.draw_parameters(shape, SEEDS, members_per_seed, dtype=torch.float64)
    # Members of a seed start alike, so they are moved apart, and so are gains and shifts.
    parameters = {n: v + 0.3 * torch.tensor(rng.standard_normal(v.shape)) for n, v in parameters.items()}
    size = (len(SEEDS), 13, shape.n_tokens)
    tokens = torch.tensor(rng.standard_normal((*size, shape.input_size)))
    mask = torch.tensor(rng.random(size) < 0.7) if shape.tokens == "frozen" else None
    return parameters, Inputs(tokens, torch.tensor(rng.integers(0, shape.n_classes, size[:2])), mask)


def plain(p, shape, tokens, present):
    """One network, one sample, written out: every token asks in every layer, keys and values are formed."""
    p = {name: value.clone() for name, value in p.items()}
    x = tokens @ p["projection"] + p["positions"] if shape.tokens == "projected" else tokens
    x = torch.cat([x, p["class_token"][None]])
    there = torch.cat([present, torch.tensor([True])])
    for layer in range(shape.n_layers):
        h = functional.layer_norm(x, (shape.width,), p[f"attend{layer}_gain"], p[f"attend{layer}_shift"])
        q, k, v = (h @ p[f"{name}{layer}"] for name in ("query", "key", "value"))
        size, read, weights = shape.width // shape.n_heads, [], []
        for head in range(shape.n_heads):
            part = slice(head * size, (head + 1) * size)
            logits = q[:, part] @ k[:, part].T / size**0.5
            weights.append(logits.masked_fill(~there, -torch.inf).softmax(-1))
            read.append(weights[-1] @ v[:, part])
        x = x + torch.cat(read, -1) @ p[f"output{layer}"]
        h = functional.layer_norm(x, (shape.width,), p[f"feed{layer}_gain"], p[f"feed{layer}_shift"])
        hidden = functional.gelu(h @ p[f"up{layer}"] + p[f"up_bias{layer}"])
        x = x + hidden @ p[f"down{layer}"] + p[f"down_bias{layer}"]
    last = functional.layer_norm(x[-1], (shape.width,), p["final_gain"], p["final_shift"])
    return last @ p["head"] + p["head_bias"], torch.stack([w[-1] for w in weights])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_folded_and_stacked_equals_written_out(shape):
    parameters, inputs = drawn(shape)
    found = models.forward(parameters, shape, inputs)
    for member in range(len(found.logits)):
        own = {name: value[member] for name, value in parameters.items()}
        for sample in range(inputs.tokens.shape[1]):
            group = member % len(SEEDS)
            there = torch.ones(5, dtype=torch.bool) if inputs.present is None else inputs.present[group, sample]
            logits, attention = plain(own, shape, inputs.tokens[group, sample], there)
            torch.testing.assert_close(found.logits[member, sample], logits, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(found.attention[member, sample], attention, rtol=1e-9, atol=1e-10)


def test_members_do_not_mix():
    shape = SHAPES["frozen"]
    parameters, inputs = drawn(shape)
    losses, gradients = comparison.clipped_gradient(shape, 1e9)(parameters, inputs)
    for member in range(4):
        own = {name: value[member : member + 1] for name, value in parameters.items()}
        group = [member % 2]
        alone = Inputs(inputs.tokens[group], inputs.labels[group], inputs.present[group])
        loss, gradient = comparison.clipped_gradient(shape, 1e9)(own, alone)
        torch.testing.assert_close(losses[member], loss[0])
        for name in gradient:
            torch.testing.assert_close(gradients[name][member], gradient[name][0], rtol=1e-9, atol=1e-12)


def test_gradients_are_cut_to_length_one_for_each_member_alone():
    shape = SHAPES["projected"]
    parameters, inputs = drawn(shape)
    _, whole = comparison.clipped_gradient(shape, 1e9)(parameters, inputs)
    lengths = torch.stack([g.flatten(1).square().sum(1) for g in whole.values()]).sum(0).sqrt()
    limit = float(lengths.sort().values[1:3].mean())
    _, cut = comparison.clipped_gradient(shape, limit)(parameters, inputs)
    after = torch.stack([g.flatten(1).square().sum(1) for g in cut.values()]).sum(0).sqrt()
    torch.testing.assert_close(after, lengths.clamp(max=limit))


def test_starts_have_the_effective_dimension_of_uniform_weights():
    shape = Shape("frozen", 32, 5)
    start = models.draw_parameters(shape, range(20))
    found = comparison.sparsity(start, shape)
    assert abs(found["effective_dimension"][:, -1].mean() - 0.75) < 0.005
    assert found["effective_dimension"].shape == (20, 5)


def test_equal_seeds_start_alike_and_others_do_not():
    start = models.draw_parameters(SHAPES["deep"], (3, 4), 2)
    for name in ("query0", "output2", "head", "projection"):
        assert torch.equal(start[name][0], start[name][2])
        assert not torch.equal(start[name][0], start[name][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 7}, "width"),
        ({"n_layers": 0}, "n_layers"),
        ({"n_layers": 2}, "one layer"),
        ({"input_size": 5}, "width of the stream"),
    ],
)
def test_impossible_shapes_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SHAPES["frozen"], **change)


def test_inputs_that_do_not_fit_are_refused():
    parameters, inputs = drawn(SHAPES["frozen"])
    with pytest.raises(ValueError, match="tokens: expected"):
        models.forward(parameters, dataclasses.replace(SHAPES["frozen"], n_tokens=7), inputs)
    three = {name: value[:3] for name, value in parameters.items()}
    with pytest.raises(ValueError, match="divides the 3 members"):
        models.forward(three, SHAPES["frozen"], inputs)


def test_the_mixed_rule_is_two_optimisers_on_each_network():
    """Against one network at a time: mirror descent or Adam on the matrices, Adam on the rest."""
    shape = SHAPES["frozen"]
    parameters, inputs = drawn(shape)
    ps, rates, names = (None, 1.1, 2.0, 3.0), (0.01, 0.02, 0.3, 0.005), models.attention_names(shape)
    gradient = comparison.clipped_gradient(shape)
    history = ensemble.train(
        gradient, parameters, lambda _: inputs, optimizer=AttentionRule(names, rates, ps), steps=6,
        record=lambda p: {"head": p["head"]},
    )  # fmt: skip
    for member, (p, rate) in enumerate(zip(ps, rates, strict=True)):
        own = {n: torch.nn.Parameter(v[member : member + 1].clone()) for n, v in parameters.items()}
        matrices = [own[n] for n in names]
        first = torch.optim.Adam(matrices, rate) if p is None else MirrorDescent(matrices, rate, p, momentum=0.9)
        second = torch.optim.Adam([w for n, w in own.items() if n not in names], 1e-3)
        group = [member % 2]
        alone = Inputs(inputs.tokens[group], inputs.labels[group], inputs.present[group])
        for _ in range(6):
            for name, g in gradient({n: w.detach() for n, w in own.items()}, alone)[1].items():
                own[name].grad = g
            first.step()
            second.step()
        for name, weight in own.items():
            torch.testing.assert_close(history.parameters[name][member], weight[0].detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rates", [((1.0,),), ((), *[(1.0,)] * 4), ((2.0, 1.0), *[(1.0, 2.0)] * 4)])
def test_impossible_step_sizes_are_refused(rates):
    with pytest.raises(ValueError, match="rates"):
        comparison.configurations(rates)


def test_every_sample_is_seen_once_per_epoch():
    order = comparison.epoch_order(7, 10, 5, np.random.default_rng(0))
    assert order.shape == (10, 5)
    for epoch in order.ravel()[:49].reshape(-1, 7):
        assert sorted(epoch) == list(range(7))


def test_attention_of_a_known_network_is_measured_by_hand():
    """Query zero: attention is uniform, so mass is the share of marked words and entropy is one."""
    shape = SHAPES["frozen"]
    parameters, inputs = drawn(shape)
    parameters["query0"] *= 0
    one = Inputs(inputs.tokens[:1], inputs.labels[:1], inputs.present[:1] | (torch.arange(5) < 2))
    marked = one.present[0] & (torch.arange(5) == 1)
    found = comparison.attended_words(parameters, shape, [(one, marked)])
    np.testing.assert_allclose(found["entropy"], 1)
    np.testing.assert_allclose(found["mass"], (marked.sum(1) / one.present[0].sum(1)).mean())
