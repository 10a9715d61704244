"""The library, a claim that can fail, the program of the chapter, an exercise; tests of the whole book do the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
import red

import attnbook
from attnbook import lab
from attnbook.paper_name.means import draw_numbers

FOLDER = Path(__file__).parents[2] / "chapters" / "paper_name"
own = lab.load_script(FOLDER / "chapter_name.py")


def test_numbers_are_standard_normal_and_bad_input_is_named():
    numbers = draw_numbers(1000, 50, seed=0)
    assert numbers.shape == (50, 1000)
    np.testing.assert_allclose([numbers.mean(), numbers.std()], [0, 1], atol=0.02)
    with pytest.raises(ValueError, match="n_numbers, n_means: expected at least 1, got 0 and 5"):
        draw_numbers(0, 5, seed=0)


def test_every_claim_can_be_turned():
    changes = {"XX-T1": lambda data: data.assign(error=data.error**2)}
    red.assert_every_claim_turns(own.first.measure, own.first.stored(), changes)


def test_the_program_of_the_chapter_is_the_experiment_and_its_table_is_true():
    """The visible cells are run as they are, but for the pictures that they show."""
    cells = json.loads((FOLDER / "chapter_name.ipynb").read_text(encoding="utf-8"))["cells"]
    stored = own.first.stored()
    names = {"chapter": own, "data": stored, "show": lambda figure, alt: None}
    for text in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        if "yours" in text:
            exec(text, names)
    errors = names["errors"]
    normal, heavy = errors(), errors(names["heavy"])
    np.testing.assert_allclose(list(normal.values()), stored.error.sel(seed=0), rtol=1e-12)
    assert errors(lambda *given: 2 * draw_numbers(*given))[300] == pytest.approx(2 * normal[300])
    assert heavy[300] > heavy[10] / 2  # the means of such numbers are distributed as the numbers are


@pytest.mark.parametrize(
    ("answer", "hint"), [(lambda error: error**-2.0, None), (lambda error: 1 / error, "root of the size")]
)
def test_the_exercise_accepts_the_right_answer_and_names_the_mistake(answer, hint):
    found = attnbook.check("XX-1", answer)
    assert found.right if hint is None else hint in found.message
