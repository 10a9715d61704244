"""A headless Chromium that the tests of the pages and ``tools/look.py`` share, and the questions they ask a page."""

from __future__ import annotations

import shutil
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no network: what is asked for elsewhere fails
]

# The formulas are set aside while axe looks: they are MathJax's own, and four fifths of all elements.
WITHOUT_FORMULAS = """async (options) => {
  const aside = [...document.querySelectorAll('mjx-container')].map(e => [e, document.createTextNode('x')]);
  for (const [formula, mark] of aside) formula.replaceWith(mark);
  const found = await axe.run(document, options);
  for (const [formula, mark] of aside) mark.replaceWith(formula);
  return found.violations;
}"""
WITH_FORMULAS = "async (options) => (await axe.run(document, options)).violations"


# From the start of the visit until the first slider's new picture is drawn, in seconds.
ANSWER = """() => new Promise(done => {
  const handle = document.querySelector('.attnbook-slider input[type=range]');
  if (!handle) return done(null);
  const box = handle.closest('.attnbook-slider'), start = Number(handle.value);
  const move = value => { handle.value = value; handle.dispatchEvent(new Event('input', {bubbles: true})); };
  box.scrollIntoView();
  move(start < Number(handle.max) ? start + 1 : start - 1);
  const picture = [...box.querySelectorAll('img')].find(i => !i.hidden);
  picture.decode().then(() => requestAnimationFrame(() => requestAnimationFrame(() => {
    done(performance.now() / 1000);
    move(start);
  })));
})"""


def launch(play: Any) -> Any:
    """Start Chromium: the one of the system, else the one that playwright has downloaded.

    Args:
        play: What ``sync_playwright`` gives.

    Returns:
        The browser.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    return play.chromium.launch(executable_path=next(filter(None, map(shutil.which, names)), None), args=FLAGS)


def settle(page: Any) -> None:
    """Wait until all formulas of a page are typeset."""
    page.evaluate("() => window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => 0) : 0")


def seconds_until_a_slider_answers(page: Any) -> float | None:
    """Move the first slider of a page that was just opened, and put it back.

    Args:
        page: The page, right after it was opened.

    Returns:
        Seconds from the start of the visit until the slider's new picture is drawn; None without a slider.
    """
    return page.evaluate(ANSWER)


def barriers(page: Any, *, everything: bool = False) -> list[str]:
    """What the accessibility engine axe-core calls serious or critical on an open page.

    Args:
        page: The page.
        everything: Look at formulas and at the contrast of colours too: three to ten times as long. Without it the
            answer does not depend on the theme.

    Returns:
        One line for each rule that is broken: its name, how often, and the first element.
    """
    from axe_playwright_python.base import AXE_SCRIPT

    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if not everything:
        options["rules"] = {"color-contrast": {"enabled": False}}
    if page.evaluate("() => !window.axe"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate(WITH_FORMULAS if everything else WITHOUT_FORMULAS, options)
    return [
        f"{rule['id']} ({rule['impact']}, {len(rule['nodes'])}): {rule['nodes'][0]['html'][:160]}"
        for rule in found
        if rule["impact"] in {"serious", "critical"}
    ]
