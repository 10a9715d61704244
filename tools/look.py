"""Look at every page of a built book as readers do: pictures of it, barriers, weight, and how soon a slider answers.

``python tools/look.py --html _build/html --output _build/screenshots [PAGE ...]``   needs no network
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from chromium import barriers, launch, seconds_until_a_slider_answers, settle
from playwright.sync_api import sync_playwright
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
DEVICES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
TALLEST = 16_000  # Chromium draws no more pixels than 16384 in one picture
HEAD = "| page | kB | sliders | seconds until a slider answers | barriers, light | barriers, dark |"


def main() -> int:
    """Write the pictures and ``report.md``, and print each row of it.

    Returns:
        1 if the accessibility engine found a serious barrier on a page, else 0.
    """
    options = _options()
    rows = [HEAD, "|---|---:|---:|---:|---|---|"]
    with sync_playwright() as play:
        browser = launch(play)
        for name in options.pages or _pages(options.html):
            rows.append(look(browser, options.html / f"{name}.html", name, options.output, full=options.full))
            Console(highlight=False, soft_wrap=True).print(rows[-1], markup=False)
        browser.close()
    (options.output / "report.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return int(not all(row.endswith("| none | none |") for row in rows[2:]))


def look(browser: Any, file: Path, name: str, output: Path, *, full: bool) -> str:
    """Take the pictures of one page and measure it.

    Args:
        browser: A running Chromium.
        file: The page.
        name: Its name in the report.
        output: Folder that gets ``device-theme/page.jpg``.
        full: Ask the accessibility engine everything; else what takes little time.

    Returns:
        The page's row of the report.
    """
    answer, sliders, found = None, 0, {}
    for device, settings in DEVICES.items():
        context = browser.new_context(**settings, offline=True)
        page = context.new_page()
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        if device == "desktop":
            answer = seconds_until_a_slider_answers(page)
        settle(page)
        sliders = page.locator(".attnbook-slider").count()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.locator(f"html[data-theme={theme}]").wait_for()
            _photograph(page, output / f"{device}-{theme}" / f"{name.replace('/', '.')}")
            if device == "desktop":
                found[theme] = "; ".join(barriers(page, everything=full)) or "none"
        context.close()
    seconds = "" if answer is None else f"{answer:.2f}"
    return f"| {name} | {file.stat().st_size / 1000:.0f} | {sliders} | {seconds} | {found['light']} | {found['dark']} |"


def _photograph(page: Any, target: Path) -> None:
    """Write the whole page as one picture, or as several where it is taller than Chromium can draw."""
    target.parent.mkdir(parents=True, exist_ok=True)
    width, height = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    for part, top in enumerate(range(0, height, TALLEST), start=1):
        place = target.with_name(f"{target.name}{'' if height <= TALLEST else f'-{part}'}.jpg")
        clip = {"x": 0, "y": top, "width": width, "height": min(TALLEST, height - top)}
        page.screenshot(path=place, type="jpeg", quality=70, full_page=True, clip=clip, timeout=120_000)


def _pages(html: Path) -> list[str]:
    inside = (file.relative_to(html) for file in html.rglob("*.html"))
    pages = (page for page in inside if page.parts[0] not in {"_static", "_images", "index.html"})
    return sorted(page.with_suffix("").as_posix() for page in pages)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Photograph and measure the pages of the built book.")
    parser.add_argument("pages", nargs="*", help="names as in _toc.yml; default all")
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html", help="folder of the built pages")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "screenshots", help="folder of the pictures")
    parser.add_argument("--full", action="store_true", help="accessibility with formulas and contrast, minutes a page")
    options = parser.parse_args()
    options.html = options.html.resolve()
    if not (options.html / "index.html").exists():
        parser.error(f"--html: no book in {options.html}; make it with: make book")
    return options


if __name__ == "__main__":
    sys.exit(main())
