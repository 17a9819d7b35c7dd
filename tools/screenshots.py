"""Screenshots of the pages and of the report, for docs/images and for looking at.

    python -m tools.screenshots                 # the kept ones, into docs/images
    python -m tools.screenshots --all FOLDER    # every width, light, dark and printed

It needs Chromium, the tour's report (`make demo`) and the pages (`make docs`).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from tests.report.browser import Browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
REPORT = ROOT / "out" / "tour" / "report.html"
SITE = ROOT / "out" / "site"
# Of the pages: those that a newcomer sees first, and one of each kind.
PAGES = ("index", "concepts", "howto/choose_epsilon", "howto/sign_for_a_release",
         "comparison", "gallery", "api/ledger")  # fmt: skip
WIDTHS = (390, 1280)
_TALLEST = 1600  # pixels of a kept picture
# name of the picture: page, width, dark
KEPT = {
    "screenshot_report": (REPORT, 1280, False),
    "screenshot_report_dark": (REPORT, 1280, True),
    "screenshot_report_phone": (REPORT, 390, False),
    "screenshot_pages": (SITE / "index.html", 1280, False),
    "screenshot_pages_phone": (SITE / "index.html", 390, False),
}


def kept(browser: Browser) -> list[Path]:
    """The pictures that the documentation shows."""
    written = []
    for name, (page, width, dark) in KEPT.items():
        browser.open(page, width=width, dark=dark)
        path = IMAGES / f"{name}.png"
        browser.screenshot(path, most=_TALLEST)
        # Few colours: a third of the file, and letters look the same.
        Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
        written.append(path)
    return written


def everything(browser: Browser, folder: Path) -> list[Path]:
    """Every page at every width, light and dark, and the report as it is printed."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"report": REPORT} | {name: SITE / f"{name}.html" for name in PAGES}
    written = []
    for name, page in pages.items():
        if not page.exists():
            print(f"left out: {page}")
            continue
        for width in WIDTHS:
            for dark in (False, True):
                browser.open(page, width=width, dark=dark)
                shade = "dark" if dark else "light"
                path = folder / f"{name.replace('/', '-')}-{width}-{shade}.png"
                browser.screenshot(path)
                written.append(path)
    browser.open(REPORT, width=718)
    browser.print(folder / "report.pdf")
    return [*written, folder / "report.pdf"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    folder = parser.parse_args().all
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        try:
            for path in (
                kept(browser) if folder is None else everything(browser, folder)
            ):
                print(path)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
