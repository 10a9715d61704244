"""The experiments of the first paper: settings, figures; wrong models turn claims red."""

import dataclasses

import numpy as np
import pytest

from attnbook import ledger
from attnbook.global_attention import masks as models
from attnbook.global_attention.experiments import sample_complexity, sparsity
from attnbook.global_attention.figures import sample_complexity as figures
from attnbook.global_attention.tables import sample_complexity as tables

SMALL = dataclasses.replace(sample_complexity.Settings.book(), seeds=(0, 1, 2), n_test=512)


@pytest.mark.parametrize(
    "change", [{"sizes": (5, 7)}, {"snapshot": 0}, {"snapshot": 9999}, {"seeds": ()}, {"seeds": (1, 1)}, {"chunk": 0}]
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(sample_complexity.Settings.book(), **change)


def test_support_is_not_judged_when_every_input_matters():
    dense = dataclasses.replace(sample_complexity.Settings.smoke(), n_relevant=32)
    assert "GA-X-support" not in sample_complexity.run(dense, device="cpu").measurements()


def test_seeds_trained_in_chunks_give_the_same_table():
    whole, parts = (
        sample_complexity.run(dataclasses.replace(sample_complexity.Settings.smoke(), chunk=chunk), device="cpu")
        for chunk in (2, 1)
    )
    np.testing.assert_allclose(whole.test_loss, parts.test_loss, rtol=1e-4)


def test_samples_needed_are_interpolated_on_log_axes():
    """Errors 1/n reach 0.02 at n = 50, wherever the sizes lie; an error that stays above never does."""
    settings = sparsity.Settings.smoke()
    losses = np.ones((2, 2, 3, 3))
    losses[:, 0] = 1 / np.array(settings.sizes)[:, None] / 2  # 0.02 at n = 25, below the smallest size
    result = dataclasses.replace(sparsity.run(settings, device="cpu"), test_loss=losses)
    assert result.samples_needed("baseline").tolist() == pytest.approx([30.0, np.inf])
    wide = dataclasses.replace(settings, target=1 / 70)
    result = dataclasses.replace(result, settings=wide)
    assert result.samples_needed("baseline")[0] == pytest.approx(35.0, rel=1e-12)


def test_figures_and_tables_draw_from_a_smoke_result(smoke_results):
    """Every plotting function of the room takes its result and returns a figure."""
    results = {
        name.split(".")[1]: result for name, result in smoke_results.items() if name.startswith("global_attention.")
    }
    drawn = [
        *(draw(results["sample_complexity"]) for draw in (figures.table_1, figures.convergence, figures.race)),
        figures.recovered_masks(results["sample_complexity"]),
        figures.error_against_samples(results["error_rate"]),
        *(draw(results["sparsity"]) for draw in (figures.sample_curves, figures.l1_path)),
        figures.dense_teacher(results["sparsity"], results["sparsity"]),
        figures.explorer_frame(results["sparsity"], 4, 40),
        figures.stopping_frame(results["sample_complexity"], 20),
    ]
    for figure in drawn:
        assert all(ax.get_xlabel() or figure.get_supxlabel() or ax.get_subplotspec() for ax in figure.axes)
        figures.plt.close(figure)
    assert "paper 2.1063" in tables.table_1(results["sample_complexity"])._repr_html_()


@pytest.fixture(scope="module")
def honest_outcomes():
    return outcomes(sample_complexity.run(SMALL, device="cpu"))


def outcomes(result):
    return {v.claim.id: v.outcome for v in ledger.check(result).verdicts}


@pytest.mark.slow
def test_honest_models_pass(honest_outcomes):
    assert "not reproduced" not in honest_outcomes.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "red"),
    [
        ("mask never trained", ("GA-TAB1-10000", "GA-F7-attention", "GA-X-support")),
        ("penalty with the wrong sign", ("GA-TAB1-10000", "GA-F7-l1", "GA-X-support")),
        ("mask gradient with the wrong sign", ("GA-TAB1-14000", "GA-TAB1-headline")),
    ],
)
def test_a_wrong_model_turns_claims_red(mutation, red, honest_outcomes, monkeypatch):
    """Guards that the rules can fail: each mutation breaks the claims that depend on what it breaks."""
    honest = models.loss_and_gradient

    def gradient(parameters, batch):
        losses, gradients = honest(parameters, batch)
        if mutation == "mask gradient with the wrong sign":
            gradients["mask"] = -gradients["mask"]
        return losses, gradients

    original = models._MaskRule.__init__

    def rule(self, members, to):
        original(self, members, to)
        if mutation == "mask never trained":
            self.trained.zero_()
        if mutation == "penalty with the wrong sign":
            self.penalty.neg_()

    monkeypatch.setattr(models, "loss_and_gradient", gradient)
    monkeypatch.setattr(models._MaskRule, "__init__", rule)
    mutated = outcomes(sample_complexity.run(SMALL, device="cpu"))
    for claim in red:
        assert honest_outcomes[claim] != "not reproduced"
        assert mutated[claim] == "not reproduced", claim


def test_stopping_text_compares_the_cells_of_the_headline():
    """A constant loss per cell, so that every ratio is known by hand."""
    stored = sample_complexity.SampleComplexity.load_stored("paper")
    losses = np.ones_like(stored.test_loss)
    losses[:, :, 0, 0], losses[:, :, 4, 0], losses[:, :, 1, 1] = 12.0, 4.0, 3.0
    text = tables.stopping_text(dataclasses.replace(stored, test_loss=losses), 3000)
    assert "12.0 times that of attention, and 3.0 times its own" in text
    assert "0.75 times the error" in text
    assert f"better one in {losses.shape[1]} of {losses.shape[1]} seeds" in text


def test_stopping_text_needs_a_recorded_step():
    stored = sample_complexity.SampleComplexity.load_stored("paper")
    with pytest.raises(ValueError, match="nothing recorded at 7"):
        tables.stopping_text(stored, 7)
