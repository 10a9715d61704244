"""What trains in the page computes what the package computes, and can be used by whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_scripts
from chromium import barriers

from attnbook.mirror_descent.attention_svm import TokenConflictError, attention_svm
from attnbook.mirror_descent.data import plane_tokens
from attnbook.mirror_descent.token_selection import trained_in_page as tokens
from attnbook.preconditioning.population import Preconditioner
from attnbook.preconditioning.structure_aware_descent import trained_in_page as descent

ROOT = Path(__file__).resolve().parents[2]
AGREE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
STEPS = 99
TOKENS = """
const {begin, advance, evaluate} = attnbookTokens;
return cases.map(([problem, options]) => {
  const model = begin(problem, options), weights = [model.W], attention = [evaluate(model.W, problem).attention];
  for (let n = 0; n < steps; n++) {
    advance(model, problem, options); weights.push(model.W); attention.push(evaluate(model.W, problem).attention);
  }
  return {weights, attention, losses: model.losses};
});"""
DESCENT = """
const {problem, layers, stepped, excessLoss, imbalance} = attnbookDescent;
return cases.map(([kappa, start, how]) => {
  const known = problem(setup, kappa), {covariance, map} = known, found = {excess: [], imbalance: [], covariance, map};
  for (let n = 0, at = layers(setup, known, start); n <= steps; n++, at = stepped(at, known, how)) {
    found.excess.push(excessLoss(at, known)); found.imbalance.push(imbalance(at, known));
  }
  return found;
});"""


def call(script: str, code: str, request: pytest.FixtureRequest, **known: Any) -> Any:
    """Run code with these names known to it."""
    names = "".join(f"const {name} = {json.dumps(value)};" for name, value in known.items())
    return training_scripts.run(script, names + code, request)


def test_attention_trains_as_in_the_package(request: pytest.FixtureRequest) -> None:
    """Weights, attention and loss at every step: all exponents, from zero and from rays, both kinds of steps."""
    places = (("B", 0.0, 0.0), ("E", 0.3, -0.2), ("A", 0.1, 0.5))
    cases, expected = [], []
    for p in tokens.PS:
        for far in tokens.STARTS:
            for scale_free in (True, False):
                for place in places:
                    problem = tokens.moved(*place)
                    ray = tokens.start(problem, p, place[0], far)
                    expected.append(tokens.trained(problem, p, ray, STEPS, normalized=scale_free))
                    chosen = tokens.NAMES.index(place[0])
                    size = tokens.TokenSelection.step_size
                    options = {"p": p, "far": far, "chosen": chosen, "scaleFree": scale_free, "stepSize": size}
                    cases.append([tokens.as_script(problem), options])
    found = call("train_tokens.js", TOKENS, request, cases=cases, steps=STEPS)
    for one, there in zip(found, expected, strict=True):
        for name in ("weights", "attention", "losses"):
            np.testing.assert_allclose(one[name], getattr(there, name), **AGREE, err_msg=name)


def test_solutions_are_those_of_the_package(request: pytest.FixtureRequest) -> None:
    """The smallest matrix that selects each token, or none, wherever one of the tokens is moved."""
    code = "return cases.map(([tokens, chosen, p]) => attnbookTokens.solution(tokens, chosen, p));"
    places = [("B", 0.0, 0.0), ("E", -0.8, 0.4), ("A", 0.2, -0.8), ("F", 0.0, 0.8), ("D", 0.6, 0.6)]
    known = [(tokens.moved(*place), chosen, p) for place in places for chosen in range(6) for p in tokens.PS]
    cases = [[problem.tokens[0, 0].tolist(), chosen, p] for problem, chosen, p in known]
    missing = 0
    for found, (problem, chosen, p) in zip(call("train_tokens.js", code, request, cases=cases), known, strict=True):
        try:
            solved = attention_svm(problem.tokens, problem.queries, np.array([[chosen]]), p)
        except TokenConflictError:
            assert found is None
            missing += 1
        else:
            np.testing.assert_allclose(found, solved.weight[0, :, 0], **AGREE)
    assert missing > 3


@pytest.mark.parametrize("kappa", [1.0, 10.0, 100.0])
def test_descents_are_those_of_the_package(kappa: float, request: pytest.FixtureRequest) -> None:
    """Covariance, map, excess loss and imbalance at every step, for all variants and starts, while losses fall."""
    variants: list[tuple[Preconditioner, float]] = [(k, w) for k in ("two", "left", "none") for w in (1.0, 0.0)]
    cases, expected = [], []
    stable = min(1.0, 10 / kappa)  # above its largest stable step size a descent multiplies rounding errors
    for start, step_size in {"near": 0.2 * stable, "white": 0.02 * stable, "plain": 0.005 * stable}.items():
        for kind, penalty in variants:
            cases.append([kappa, start, {"kind": kind, "penalty": penalty, "stepSize": step_size}])
            expected.append(descent.curves(kappa, start, kind, penalty, step_size, STEPS))
    setup = descent.setup()
    covariance, true_map = descent.problem(kappa)
    finite = 0
    for found, there in zip(
        call("train_descent.js", DESCENT, request, cases=cases, setup=setup, steps=STEPS), expected, strict=True
    ):
        np.testing.assert_allclose(found["covariance"], covariance, **AGREE)
        np.testing.assert_allclose(found["map"], true_map, **AGREE)
        finite += len(there.excess) > STEPS
        sound = [n for n, value in enumerate(there.excess) if value < there.excess[0]] or [0]
        upto = sound[-1] + 1  # one that diverges does so, too
        np.testing.assert_allclose(found["excess"][:upto], there.excess[:upto], **AGREE)
        np.testing.assert_allclose(found["imbalance"][:upto], there.imbalance[:upto], **AGREE)
    assert finite >= 6


def test_the_problem_has_the_condition_number_and_the_singular_values() -> None:
    """Whatever the condition number, the map on whitened inputs is the same."""
    for kappa in descent.KAPPAS:
        covariance, true_map = descent.problem(kappa)
        assert torch.linalg.cond(covariance).item() == pytest.approx(kappa)
        root = torch.linalg.cholesky(covariance)
        np.testing.assert_allclose(torch.linalg.svdvals(true_map @ root), [0.3, 0.225, 0.15], rtol=1e-12)


def test_starts_of_the_live_form_are_rays_or_zero() -> None:
    """A token within the others has no ray."""
    plane = plane_tokens()
    assert not tokens.start(plane, 2.0, "F", 20).any()
    assert not tokens.start(plane, 2.0, "B", 0).any()
    ray = tokens.start(plane, 2.0, "B", 20)
    assert (ray[0, :, 0] @ (plane.tokens[0, 0, 1] - plane.tokens[0, 0]).T).max() >= 20


@pytest.mark.parametrize("name", ["panel", "tokens", "descent"])
def test_scripts_are_small(name: str) -> None:
    """At most 30 KB each."""
    assert (ROOT / "style" / f"train_{name}.js").stat().st_size <= 30_000


PAGES = {
    "tokens": "chapters/mirror_descent/token_selection",
    "descent": "chapters/preconditioning/structure_aware_descent",
}
SMALLEST = """() => {  // sizes of text on the canvas are those of the font that is set when it is written
  const seen = [], pen = CanvasRenderingContext2D.prototype, write = pen.fillText;
  const size = (font) => parseFloat(font.match(/([\\d.]+)px/)[1]);
  pen.fillText = function (...all) { seen.push(size(this.font)); write.apply(this, all); };
  document.querySelector('.attnbook-train button:nth-child(2)').click();
  const texts = [...document.querySelectorAll('.attnbook-train-live *')].filter(e => e.textContent.trim());
  seen.push(...texts.map(e => parseFloat(getComputedStyle(e).fontSize)));
  return new Promise(done => setTimeout(() => done([seen.length > texts.length, Math.min(...seen)]), 300));
}"""


@pytest.fixture(scope="module", params=PAGES)
def panel(request: pytest.FixtureRequest, html: Path, tab: Any) -> tuple[str, Any, Any]:
    """Kind, page and panel of a chapter, opened once for all tests that look at it."""
    tab.turn_to((html / f"{PAGES[request.param]}.html").as_uri())
    assert tab.problems == []
    return request.param, tab.page, tab.page.locator(".attnbook-train")


@pytest.mark.slow
def test_a_panel_trains_by_keyboard_and_says_what_it_does(panel: tuple[str, Any, Any]) -> None:
    """Step, run, pause and reset; the words say the step, aloud too; the stored picture waits for print."""
    _, page, box = panel
    words, aloud = box.locator(".attnbook-train-text"), box.locator("[aria-live=polite]")
    run, step, reset = (box.get_by_role("button").nth(n) for n in range(3))
    assert box.locator("img").is_hidden()
    step.press("Enter")
    page.wait_for_function("() => document.querySelector('.attnbook-train-text').textContent.startsWith('Step 1,')")
    assert aloud.text_content() == words.text_content()
    run.press("Enter")
    page.wait_for_function("() => parseInt(document.querySelector('.attnbook-train-text').textContent.slice(5)) > 20")
    run.press("Enter")
    page.wait_for_timeout(100)
    assert run.text_content() == "Run"
    assert aloud.text_content() == words.text_content()
    reset.press("Enter")
    page.wait_for_function("() => document.querySelector('.attnbook-train-text').textContent.startsWith('Step 0,')")
    assert barriers(page) == []
    page.emulate_media(media="print")
    assert box.locator("img").is_visible()
    assert box.locator("canvas").is_hidden()


@pytest.mark.slow
def test_a_panel_fits_a_laptop_and_a_phone(panel: tuple[str, Any, Any]) -> None:
    """At most 700 pixels high at 1366; on a phone as wide as the page, its text at least 11 pixels."""
    _, page, box = panel
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1366, "height": 768})
    assert box.bounding_box()["height"] <= 700
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    drawn, smallest = page.evaluate(SMALLEST)
    assert drawn
    assert smallest >= 11


# Where each slider of a panel is, at all values of all sliders.
PLACES = """box => {
  const sliders = [...box.querySelectorAll('input[type=range]')], places = sliders.map(() => new Set());
  const move = (slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); };
  for (const slider of sliders) {
    const start = slider.value;
    for (let value = 0; value <= slider.max; value++) {
      move(slider, value);
      sliders.forEach((e, n) => places[n].add(Math.round(e.getBoundingClientRect().top + scrollY)));
    }
    move(slider, start);
  }
  return places.map(found => found.size);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1366, 1024, 390])
def test_sliders_stay_where_they_are(width: int, panel: tuple[str, Any, Any]) -> None:
    """Whatever the values, no label wraps that did not before: else a slider jumps away from the pointer."""
    _, page, box = panel
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": width, "height": 768})
    assert set(box.evaluate(PLACES)) <= {1}


@pytest.mark.slow
def test_tokens_are_moved_by_keys_and_by_pointer(html: Path, visit: Callable) -> None:
    """Letters choose a token, arrows move it, and a pointer drags the one below it."""
    page = visit((html / f"{PAGES['tokens']}.html").as_uri(), formulas=False).page
    canvas, said = page.locator(".attnbook-train canvas"), page.locator(".attnbook-train [aria-live=polite]")
    canvas.press("e")
    canvas.press("ArrowLeft")
    canvas.press("Shift+ArrowUp")
    assert "E, the token to move, is at 1.20, -0.79." in (said.text_content() or "")
    canvas.scroll_into_view_if_needed()
    place = canvas.bounding_box()
    wide, high = 0.6 * place["width"], 336
    unit = min(wide / 4.3, high / 2.8)
    at = [place["x"] + wide / 2 + 1.2 * unit, place["y"] + high / 2 + 0.79 * unit]
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] - unit / 2, at[1] - unit, steps=4)
    page.mouse.up()
    assert "E, the token to move, is at 0.70, 0.21." in (said.text_content() or "")
    page.close()


@pytest.mark.slow
def test_less_motion_takes_many_steps_at_once(html: Path, visit: Callable) -> None:
    """Where the reader's system asks for it, nothing moves by itself."""
    page = visit((html / f"{PAGES['descent']}.html").as_uri(), formulas=False).page
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Run 200 steps").click()
    assert (page.locator(".attnbook-train [aria-live=polite]").text_content() or "").startswith("Step 200,")
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
def test_without_scripts_the_first_picture_stays_and_says_so(kind: str, html: Path, browser: Any) -> None:
    """The picture is there, its words, and why it does not move."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((html / f"{PAGES[kind]}.html").as_uri())
    box = page.locator(".attnbook-train")
    assert box.locator("img").is_visible()
    assert "This is the first picture" in box.inner_text()
    context.close()


@pytest.mark.slow
def test_only_these_pages_load_the_scripts(html: Path) -> None:
    """One script for what panels share, and one for each kind."""
    loading = [
        page.relative_to(html).with_suffix("").as_posix()
        for page in html.rglob("*.html")
        if "_static/train_" in page.read_text(encoding="utf-8")
    ]
    assert sorted(loading) == sorted(PAGES.values())
