"""The page about a book: its numbers are the ledger's, and it fetches nothing."""

import re
from html.parser import HTMLParser

from demur.core.adjacency import AddOrRemoveOne, Ball
from demur.core.curve import PiecewiseLinear
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.report import write_report

UNIT, NEAR = AddOrRemoveOne(), Ball(0.25, space="pixels")


class Links(HTMLParser):
    """Everything a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag in ("script", "link", "iframe", "img"):
            self.found.append(tag)
        self.found += [
            v
            for k, v in attrs
            if k in ("src", "href", "xlink:href") and not v.startswith("#")
        ]


def test_page(tmp_path) -> None:
    ledger = Ledger({UNIT: Budget(2.0, 1e-6), NEAR: Budget(1.0, 1e-6)})
    mechanism = Gaussian(
        8.0, {UNIT: 1.0, "pixels": PiecewiseLinear.linear(1.0, cap=2.0)}, name="<sums>"
    )
    mechanism.release([1.0], ledger, label="a <b>label</b> & more")
    path = tmp_path / "report.html"
    write_report(ledger, path)
    page = path.read_text()
    for status in ledger.status():
        assert f"<b>{status.spent_epsilon:.4g}</b>" in page
        assert f"{ledger.epsilon(unit=status.unit):.4g}" in page
    assert "a &lt;b&gt;label&lt;/b&gt; &amp; more" in page
    assert "<b>label</b>" not in page
    assert page.count("<svg") == 3, "a gauge for each budget and the curve"
    links = Links()
    links.feed(page)
    assert links.found == []
    assert not re.search(r"url\((?!#)", page)


def test_empty_book(tmp_path) -> None:
    path = tmp_path / "report.html"
    write_report(Ledger(Budget(1.0), unit=UNIT), path)
    assert "nothing was released" in path.read_text()
