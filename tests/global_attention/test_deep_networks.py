"""Networks of several layers behind a mask: against autograd, sample by sample, and by hand."""

import numpy as np
import pytest
import torch

from attnbook.global_attention.recurrent.depth import draw_deep, largest_gradient_correlation, predict_deep


def network(widths):
    drawn = draw_deep(7, widths, rng=np.random.default_rng(0))
    parameters = {name: torch.as_tensor(array)[None] for name, array in drawn.items()}
    return parameters | {"mask": torch.rand(1, 7, generator=torch.Generator().manual_seed(0)).double()}


@pytest.mark.parametrize("widths", [[5], [5, 3], [5, 3, 11]])
def test_the_largest_correlation_is_that_of_automatic_gradients_sample_by_sample(widths):
    parameters = network(widths)
    inputs = torch.as_tensor(np.random.default_rng(1).standard_normal((29, 7)))
    truth = torch.linspace(-1, 1, 29).double()
    rows = []
    for x in inputs:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        answer = predict_deep(leaves, x[None, None]).squeeze()
        slopes = torch.autograd.grad(answer, [leaf for name, leaf in leaves.items() if name != "mask"])
        rows.append(torch.cat([slope.flatten() for slope in slopes]).numpy())
    residual = (predict_deep(parameters, inputs[None])[0] - truth).numpy()
    moving = np.array(rows)[:, np.std(rows, axis=0) > 1e-9]
    expected = max(abs(np.corrcoef(residual, column)[0, 1]) for column in moving.T)
    assert largest_gradient_correlation(parameters, inputs, truth) == pytest.approx(expected, rel=1e-6)


def test_two_layers_by_hand():
    parameters = {
        "mask": torch.tensor([[1.0, 0.5, 0.0]]),
        "layer_1": torch.tensor([[[1.0, 2.0, 9.0], [-1.0, 0.0, 9.0]]]),
        "layer_2": torch.tensor([[[3.0, 5.0]]]),
    }
    inputs = torch.tensor([[[1.0, 1.0, 1.0], [-1.0, 0.0, 7.0]]])
    assert predict_deep(parameters, inputs).tolist() == [[6.0, 5.0]]


def test_weights_have_the_variance_of_their_fan_in():
    drawn = draw_deep(400, [300, 200], rng=np.random.default_rng(0), n_relevant=4)
    assert drawn["mask"].tolist() == [1.0] * 400
    spreads = [drawn[f"layer_{k}"].var() for k in (1, 2, 3)]
    np.testing.assert_allclose(spreads, [2 / 4, 2 / 300, 1 / 200], rtol=0.2)
    assert [drawn[f"layer_{k}"].shape for k in (1, 2, 3)] == [(300, 400), (200, 300), (1, 200)]
