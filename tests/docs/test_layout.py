"""The documentation in a real Chromium: phone and desk, light, dark and paper.

Nothing is beyond the edge, cut off by paper, pale, missing, or drawn over other words.
Each check also meets a page that was spoilt on purpose, and must find the fault.
"""

import time

import pytest

from tests.docs.blocks import ROOT
from tests.report import layout
from tests.report.browser import Browser

pytestmark = pytest.mark.slow

mkdocs_build = pytest.importorskip("mkdocs.commands.build")
mkdocs_config = pytest.importorskip("mkdocs.config")

# One of each kind: the first page, wide tables, pictures, long code, parameter tables.
SAMPLE = (
    "index",
    "compat_memory_pair",
    "gallery",
    "howto/add_a_mechanism",
    "api/preprocessing",
)
SCREENS = [(width, dark) for width in (390, 1280) for dark in (False, True)]
PAPER = 718  # A4 between its margins, in pixels


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def built(folder, **changes):
    """The site, in a folder."""
    config = mkdocs_config.load_config(
        str(ROOT / "mkdocs.yml"), site_dir=str(folder), **changes
    )
    mkdocs_build.build(config)
    return folder


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    kept = "".join(f"!/{name}.md\n" for name in SAMPLE)
    return built(
        tmp_path_factory.mktemp("site"),
        nav=[f"{name}.md" for name in SAMPLE],
        exclude_docs=f"*.md\n{kept}",
    )


def faults(browser, page):
    """What is wrong with a page on each screen, and on paper."""
    found = []
    for width, dark in SCREENS:
        browser.open(page, width=width, dark=dark)
        found += layout.on_screen(browser)
    return found + printed(browser, page)


def printed(browser, page):
    browser.open(page, width=PAPER, dark=True)
    return layout.on_paper(browser, dark=True)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_page_is_sound(browser, sample, name):
    assert faults(browser, sample / f"{name}.html") == []


@pytest.mark.deep
def test_every_page_is_sound(browser, tmp_path):
    pages = sorted(built(tmp_path).rglob("*.html"))
    found = {
        page.relative_to(tmp_path): faults(browser, page)
        for page in pages
        if page.name != "404.html"  # its links start at the root of a server
    }
    assert len(found) > 50
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def waited_for(browser, expression):
    """The value of an expression, once it is no longer empty."""
    for _ in range(200):
        value = browser.evaluate(expression)
        if value:
            return value
        time.sleep(0.02)
    return value


def found_by_search(browser, page, words):
    """The titles that the search of a page from disk finds."""
    browser.open(page, width=1280)
    browser.evaluate("document.querySelector('.md-search__input').focus()")
    browser.call("Input.insertText", text=words)
    titles = "[...document.querySelectorAll('.md-search-result h1')]"
    return waited_for(browser, f"{titles}.map(e => e.innerText)")


def test_search_works_from_disk(browser, sample):
    assert "Add a mechanism" in found_by_search(
        browser, sample / "howto" / "add_a_mechanism.html", "randomised response"
    )
    page = (sample / "index.html").read_text()
    twin = sample / "twin.html"
    twin.write_text(page.replace("file_worker.js", "nowhere.js"))
    assert found_by_search(browser, twin, "randomised response") == []


def test_light_and_dark_can_be_switched(browser, sample):
    browser.open(sample / "index.html", width=1280)
    scheme = "document.body.dataset.mdColorScheme"
    shown = "[...document.querySelectorAll('label.md-header__button[title*=witch]')]"
    seen = []
    for _ in range(3):
        seen.append(browser.evaluate(scheme))
        browser.evaluate(f"{shown}.find(e => e.checkVisibility()).click()")
    assert set(seen) == {"default", "slate"}


def drawing_faults(browser, path, *, folder):
    """What is wrong with a drawing, which a page shows as a picture."""
    page = folder / "drawing.html"
    page.write_text(f"<!doctype html><body>{path.read_text()}")
    browser.open(page, width=1000)
    return browser.evaluate(layout.OVERLAPS) + browser.evaluate(layout.OUTSIDE)


def test_drawings_are_sound(browser, tmp_path):
    drawings = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert len(drawings) >= 6
    found = {d.name: drawing_faults(browser, d, folder=tmp_path) for d in drawings}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    whole = (ROOT / "docs" / "images" / "idea.svg").read_text()
    cut, twice = tmp_path / "cut.svg", tmp_path / "twice.svg"
    cut.write_text(whole.replace('viewBox="0 0 860 400"', 'viewBox="0 0 860 300"'))
    twice.write_text(whole.replace('x="85" y="252"', 'x="85" y="132"'))
    assert all(drawing_faults(browser, d, folder=tmp_path) for d in (cut, twice))


SVG = "<svg width=200 height=50><text x=5 y=20>{}</text><text x={} y=20>{}</text></svg>"
WIDE = "<table><tr>" + "<td>several words</td>" * 30 + "</tr></table>"
SPOILT = {
    "a box beyond the edge": (layout.BEYOND, "<div style='width: 3000px'>wide</div>"),
    "a picture that is not there": (layout.MISSING, "<img src='nowhere.png'>"),
    "pale letters": (layout.PALE, "<p style='color: #aaa; background: #fff'>pale</p>"),
    "words upon words": (layout.OVERLAPS, SVG.format("one word", 20, "another")),
    "a table that paper cuts off": (
        layout.CUT_OFF,
        f"<div style='overflow-x: auto'><table class=x>{WIDE[7:]}</div>",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_page_is_found(browser, sample, what):
    check, markup = SPOILT[what]
    browser.open(sample / "index.html", width=PAPER)
    if check == layout.CUT_OFF:
        browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(check) == []
    add = f"insertAdjacentHTML('beforeend', `{markup}`)"
    browser.evaluate(f"document.querySelector('article').{add}")
    for _ in range(100):  # a picture fails after a moment
        found = browser.evaluate(check)
        if found:
            break
    browser.call("Emulation.setEmulatedMedia", media="")
    assert found


def test_words_beside_one_another_are_no_fault(browser, sample):
    browser.open(sample / "index.html", width=1280)
    markup = SVG.format("one", 90, "another")
    browser.evaluate(f"document.body.insertAdjacentHTML('beforeend', `{markup}`)")
    assert browser.evaluate(layout.OVERLAPS) == []


def test_without_its_print_rules_paper_cuts_a_page_off(browser, sample):
    """The rules in extra.css are what keeps wide tables and long lines whole."""
    printed(browser, sample / "compat_memory_pair.html")
    browser.evaluate("""[...document.styleSheets].forEach(s => {
      if (s.href.includes('extra.css')) s.disabled = true; })""")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(layout.CUT_OFF) != []
    browser.call("Emulation.setEmulatedMedia", media="")


def test_colours_of_a_dark_screen_are_pale_on_paper(browser, sample):
    page = (sample / "index.html").read_text()
    rule = "[data-md-color-scheme=slate] { --md-typeset-a-color: #7fb6d2; }"
    twin = sample / "twin.html"
    twin.write_text(page.replace("</head>", f"<style>{rule}</style></head>"))
    assert any("127, 182, 210" in f for f in printed(browser, twin))
