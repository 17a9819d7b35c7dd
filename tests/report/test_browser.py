"""The page in a real Chromium, at the width of a phone and of a desk.

It loads without a word on the console, fetches nothing, is not wider than the screen,
its letters can be read, and its numbers are the ledger's. Each check also meets a page
that was spoilt on purpose, and must refuse it.
"""

import re
from itertools import product

import pytest

from demur import Ball, Budget, Ledger, LipschitzMap
from demur.report import write_certificate, write_report
from demur.unlearning import UnlearningService
from tests.families import thinned
from tests.report import layout, ledgers
from tests.report.browser import Browser
from tests.report.check import differences

pytestmark = pytest.mark.slow

WIDTHS = (390, 1280)
NUMBERS = """
  [...document.querySelectorAll('[data-%s]')].map(e => [e.dataset.%s, e.textContent])
"""
# Of every drawing that is shown: letters that are too small, and letters cut off.
LETTERS = """
  (() => {
    const found = {seen: 0, small: [], cut: []};
    for (const svg of document.querySelectorAll('figure svg')) {
      const frame = svg.getBoundingClientRect();
      if (frame.width === 0) continue;
      for (const text of svg.querySelectorAll('text')) {
        const box = text.getBoundingClientRect();
        const size = parseFloat(getComputedStyle(text).fontSize)
          * frame.width / svg.viewBox.baseVal.width;
        found.seen += 1;
        if (size < 9.5) found.small.push([text.textContent, size]);
        if (box.left < frame.left - 1 || box.right > frame.right + 1)
          found.cut.push(text.textContent);
      }
    }
    return found;
  })()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def ledger():
    return ledgers.full()


@pytest.fixture(scope="module")
def page(ledger, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(ledger, path)
    return path


def problems(browser, path, ledger, width, dark=False) -> list[str]:
    """Everything that is wrong with a page at a width."""
    browser.open(path, width=width, dark=dark)
    problems = browser.messages + layout.on_screen(browser)
    letters = browser.evaluate(LETTERS)
    problems += [f"small: {text}" for text in letters["small"]]
    problems += [f"cut: {text}" for text in letters["cut"]]
    if ledger.entries() and not letters["seen"]:
        problems.append("no drawing is shown")
    numbers, bounds = (
        dict(browser.evaluate(NUMBERS % (kind, kind))) for kind in ("number", "lower")
    )
    data = browser.evaluate("JSON.parse(document.getElementById('ledger').textContent)")
    return problems + differences(numbers, bounds, data, ledger)


@pytest.mark.parametrize(
    ("width", "dark"), thinned(product(WIDTHS, [False, True]), 3), ids=str
)
def test_a_full_ledger(browser, page, ledger, width, dark) -> None:
    assert problems(browser, page, ledger, width, dark) == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(16, 22, 29)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("kind", ["empty", "seeded"])
def test_other_ledgers(browser, tmp_path, kind) -> None:
    if kind == "empty":
        ledger = ledgers.empty()
    else:
        ledger = ledgers.full(tmp_path / "ledger.db", testing=True)
    with ledger:
        write_report(ledger, tmp_path / "report.html")
        for width in WIDTHS:
            assert problems(browser, tmp_path / "report.html", ledger, width) == []
        banner = browser.evaluate("document.querySelector('.banner')?.innerText ?? ''")
        assert ("NOT PRIVATE" in banner) == (kind == "seeded")


@pytest.mark.parametrize("entries", [270, pytest.param(2000, marks=pytest.mark.deep)])
def test_a_ledger_of_many_entries(browser, tmp_path, entries) -> None:
    """Entries are folded away above 200: more of them are more of the same."""
    ledger = ledgers.long(entries)
    write_report(ledger, tmp_path / "report.html")
    for width in (WIDTHS[0], WIDTHS[-1]):
        assert problems(browser, tmp_path / "report.html", ledger, width) == []
    shown = (
        "[...document.querySelectorAll('tr')].filter(e => e.checkVisibility()).length"
    )
    assert 200 < browser.evaluate(shown) < 260, "older entries are folded away"


SPOILT = {
    "a number": (r'(data-number="budgets.0.spent_epsilon">)[^<]+', r"\g<1>0.5"),
    "a number of the JSON": (r'("spent_epsilon": )[0-9.]+', r"\g<1>0.5"),
    "something to fetch": ("</main>", "<img src='http://127.0.0.1:9/x.png'></main>"),
    "a script": ("</main>", "<script>console.log(1)</script></main>"),
    "something wide": ("</main>", "<div style='width: 2000px'>wide</div></main>"),
    "pale letters": ("</main>", "<p style='color: #aaa'>pale</p></main>"),
    "letters too small": (r"svg\.wide \{ display: none !important; \}", ""),
    "a drawing cut off": (r'viewBox="0 0 2\d\d\.\d* ', 'viewBox="0 0 150 '),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_page_is_refused(browser, page, ledger, tmp_path, what) -> None:
    pattern, replacement = SPOILT[what]
    twin, changed = re.subn(pattern, replacement, page.read_text(), count=1)
    assert changed == 1
    (tmp_path / "twin.html").write_text(twin)
    assert problems(browser, tmp_path / "twin.html", ledger, 390) != []


def test_it_prints_light_and_unfolded(browser, page, tmp_path) -> None:
    browser.open(page, width=718, dark=True)  # A4 between its margins
    pdf = tmp_path / "report.pdf"
    browser.print(pdf)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert layout.on_paper(browser, dark=True) == []
    browser.call("Emulation.setEmulatedMedia", media="print")
    paper = browser.evaluate("getComputedStyle(document.body).color")
    assert paper == "rgb(29, 39, 51)", "dark ink on white paper"
    statement = "document.querySelector('h2#entries + table details.statement p')"
    tall = f"{statement}.getBoundingClientRect().height"
    assert browser.evaluate(tall) > 20, "statements are printed"
    drawn = "getComputedStyle(document.querySelector('svg.wide')).display"
    assert browser.evaluate(drawn) == "block"
    certificate = "document.querySelector('ul.facts').getBoundingClientRect().height"
    assert browser.evaluate(certificate) > 5, "certificates are printed"
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))
    assert pages <= 5, "of 6 entries, with their statements"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_certificate(browser, tmp_path, dark) -> None:
    path = tmp_path / "model.db"
    with UnlearningService.open(path, mode="ridge", dimension=2) as service:
        service.insert_many([[0.1, 0.2], [0.3, 0.1]], [0.1, 0.2], record_ids=[1, 2])
        write_certificate(service.delete(1, [0.1, 0.2], 0.1), tmp_path / "page.html")
    for width in WIDTHS:
        browser.open(tmp_path / "page.html", width=width, dark=dark)
        assert browser.messages == []
        assert layout.on_screen(browser) == []
    browser.open(tmp_path / "page.html", width=718, dark=dark)
    assert layout.on_paper(browser, dark=dark) == []


def test_one_space_at_a_time_is_drawn(browser, tmp_path) -> None:
    """Without a script: a radio button for each space."""
    ledger = Ledger(
        {Ball(0.5, space="raw"): Budget(4.0, 1e-5)},
        maps=[LipschitzMap("raw", "pixels", constant=2.0)],
    )
    ledger.charge(ledgers.sums(9.0).declaration(), label="a curve")
    write_report(ledger, tmp_path / "report.html")
    for width in WIDTHS:
        assert problems(browser, tmp_path / "report.html", ledger, width) == []
        shown = "[...document.querySelectorAll('.panel')].map(e => e.checkVisibility())"
        assert browser.evaluate(shown) == [True, False]
        browser.evaluate("document.querySelector('label[for=space-1]').click()")
        assert browser.evaluate(shown) == [False, True]
