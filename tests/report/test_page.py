"""The page about a ledger: its numbers are the ledger's, and it fetches nothing."""

import math
import re
from collections import Counter
from copy import deepcopy
from importlib.resources import files

import pytest

from demur import AddOrRemoveOne, Declaration, __version__
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, Fixed
from demur.ledger import Budget, Ledger
from demur.report import gather, render, sections, write_report
from demur.report.text import number_down, number_up, one_line
from tests.report import ledgers
from tests.report.check import Page, differences


@pytest.fixture(scope="module")
def ledger():
    return ledgers.full()


@pytest.fixture(scope="module")
def page(ledger):
    return render(gather(ledger))


@pytest.mark.slow
def test_the_numbers_are_the_ledgers(ledger, page) -> None:
    parsed = Page(page)
    assert len(parsed.numbers) > 40
    assert differences(parsed.numbers, parsed.bounds, parsed.data, ledger) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["budgets.0.spent_epsilon", "budgets.1.tight_epsilon", "entries.2.epsilon.0",
     "spaces.0.epsilon.6", "deletions.0.epsilon", "audits.0.claimed"],
)  # fmt: skip
def test_a_page_with_one_number_changed_fails(ledger, page, place) -> None:
    mark = rf'(data-number="{re.escape(place)}">)([^<]+)'
    twin, changed = re.subn(mark, r"\g<1>0.001234", page)
    assert changed == 1
    parsed = Page(twin)
    assert differences(parsed.numbers, parsed.bounds, parsed.data, ledger) != []


@pytest.mark.slow
def test_json_with_one_number_changed_fails(ledger, page) -> None:
    parsed = Page(page)
    for change in (
        lambda d: d["budgets"][0].update(spent_epsilon=1.0),
        lambda d: d["entries"][3]["epsilon"].__setitem__(1, 0.1),
        lambda d: d["spaces"][0]["epsilon"].__setitem__(12, 0.1),
        lambda d: d["entries"].pop(),
    ):
        data = deepcopy(parsed.data)
        change(data)
        assert differences(parsed.numbers, parsed.bounds, data, ledger) != []


@pytest.mark.slow
def test_costs_are_rounded_up_and_budgets_and_lower_bounds_down(page) -> None:
    bounds = Page(page).bounds
    assert bounds["audits.0.lower_bound"] == "0.31"
    assert {"budgets.0.epsilon", "budgets.0.delta"} <= set(bounds)
    assert number_up(0.42671) == "0.4268" and number_up(0.0) == "0"
    assert number_up(float("inf")) == "unbounded" and number_up(None) == "not known"
    assert number_down(0.42679) == "0.4267" and number_down(None) == "no bound"


@pytest.mark.slow
def test_nothing_is_fetched_or_run(page) -> None:
    assert Page(page).loads == []
    assert not re.search(r"url\((?!#)", page) and "@import" not in page
    assert "default-src 'none'" in page
    assert Page(page + "<script src=x></script>").loads, "the check has power"


def test_text_from_a_ledger_is_text(page) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in page
    assert page.count("</title>") == 1
    assert one_line("a\u202eb\x00c\n\td") == "a\ufffdb\ufffdc  d"


def test_every_name_in_the_page_is_its_own(page) -> None:
    twice = [name for name, n in Counter(Page(page).ids).items() if n > 1]
    assert twice == []


def test_every_picture_and_table_can_be_heard(page) -> None:
    pictures = re.findall(r"<svg[^>]*>", page)
    assert len(pictures) == 2 * 4, "distance, time, utility, audits: two widths each"
    for opening in pictures:
        assert 'role="img"' in opening
        (alt,) = re.findall(r'aria-label="([^"]*)"', opening)
        assert len(alt) > 30
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert '<th scope="col"' in table
    assert page.count('role="meter"') == 3


def test_sections_say_what_the_ledger_holds(ledger, page) -> None:
    for entry in ledger.entries():
        assert entry.declaration.name in page
        assert "dataset &quot;digits&quot;" in page
    for text in (
        "certificate of",
        "3f9a3f9a",
        "REFUTED",
        "not refuted",
        "no bound",
        "Notes left out",
        str(ledger.tip()),
        "Not known: whether rows were cut off",
    ):
        assert text in page


def test_a_signed_page_says_no_more_than_the_ledger_knows(page) -> None:
    """No claim about releases that went round it; date, version and signature."""
    assert "Every release about" not in page
    assert "no ledger can know of them" in page
    assert f"with demur {__version__}" in page and 'class="signature"' in page
    assert "I know of no release about these data that is not in it" in page


def test_who_asked_stands_on_the_page_if_it_may(ledger, page) -> None:
    (asked,) = ledger.declined()
    assert "too much at once" in page and asked.actor not in page
    named = render(gather(ledger, actors=True, issuer="Office of <Privacy>"))
    assert asked.actor in named
    assert "by <bdi>Office of &lt;Privacy&gt;</bdi>" in named
    with pytest.raises(TypeError):
        gather(ledger, issuer=3)


@pytest.mark.parametrize(
    ("epsilon", "weak"), [(1.0, False), (8.5, True), (1e-3, False)]
)
def test_a_weak_guarantee_is_called_weak(epsilon, weak) -> None:
    ledger = Ledger(Budget(20.0), unit=AddOrRemoveOne(), filter="pure")
    cost = Cost((Fixed(AddOrRemoveOne(), Pure(epsilon)),))
    ledger.charge(Declaration("pure", cost), label="x")
    card = sections.budgets(gather(ledger))
    assert ("This is a weak guarantee." in card) is weak
    if weak:
        (few,) = re.findall(r"as few as one of ([\d,]+) cases", card)
        assert int(few.replace(",", "")) == math.floor(1 + math.exp(epsilon))
        return
    right = 100 / (1 + math.exp(-epsilon))
    (told,) = re.findall(r"at most ([\d.]+)% of cases", card)
    assert right <= float(told) <= right + 0.011


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (1.0, 0.05), (4.0, 1e-6)])
def test_an_attacker_does_no_better_than_the_page_says(epsilon, delta) -> None:
    """Against the mechanism that is the worst at (epsilon, delta): it reaches it."""
    # With probability delta it tells all, otherwise randomised response.
    other = math.exp(epsilon) / (1 + math.exp(epsilon))
    reached = delta + (1 - delta) * other
    told = sections.attacker_success(epsilon, delta)
    assert told == pytest.approx(reached, rel=1e-12)
    twin = other  # it forgets delta
    assert delta == 0.0 or twin < reached


def test_numbers_that_skip_and_do_not_add_up_say_why(page) -> None:
    assert "Numbers are rows of the ledger" in page
    assert "they do not add up to what is spent" in page
    one = Ledger(Budget(1.0), unit=AddOrRemoveOne(), filter="pure")
    cost = Cost((Fixed(AddOrRemoveOne(), Pure(0.1)),))
    one.charge(Declaration("pure", cost), label="x")
    assert "rows of the ledger" not in render(gather(one))


def test_a_budget_that_is_used_up_does_not_look_overdrawn() -> None:
    ledger = Ledger(Budget(9.49539), unit=AddOrRemoveOne(), filter="pure")
    cost = Cost((Fixed(AddOrRemoveOne(), Pure(9.4953)),))
    ledger.charge(Declaration("pure", cost), label="x")
    page = render(gather(ledger))
    assert Page(page).numbers["budgets.0.spent_epsilon"] == "9.4953"
    assert Page(page).bounds["budgets.0.epsilon"] == "9.4953"
    assert "epsilon 9.4953 at delta 0 (budget 9.4953)" in page


@pytest.mark.slow
def test_empty_ledger() -> None:
    ledger = ledgers.empty()
    page = render(gather(ledger))
    parsed = Page(page)
    assert "nothing was released" in page and 'id="time"' not in page
    assert differences(parsed.numbers, parsed.bounds, parsed.data, ledger) == []
    flat = Ledger(Budget(1.0), unit=AddOrRemoveOne())
    assert "<svg" not in render(gather(flat))


@pytest.mark.slow
def test_seeded_noise_is_stamped_and_a_damaged_ledger_says_so(tmp_path) -> None:
    with ledgers.full(tmp_path / "seeded.db", testing=True) as ledger:
        facts = gather(ledger, tip="3:" + "0" * 64)
        assert not facts.private and not facts.chain.ok
        assert "<strong>NOT PRIVATE</strong>" in sections.top(facts)
        assert "chain: DAMAGED" in sections.top(facts)
        assert "is not in this ledger" in sections.chain(facts)
        assert "NOT PRIVATE" in sections.entries(facts)
    testing = Ledger.open(
        tmp_path / "t.db",
        dataset="t",
        budgets={ledgers.UNIT: Budget(1.0)},
        testing=True,
    )
    with testing:
        assert "NOT PRIVATE: a ledger for testing" in sections.top(gather(testing))


@pytest.mark.slow
def test_the_page_is_whole_or_not_there(tmp_path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        write_report(ledgers.empty(), tmp_path / "none" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_report(ledgers.empty(), tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme) -> None:
    """WCAG: 4.5 to 1 for text, 3 to 1 for lines and marks."""
    style = files("demur.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6})", dark))
    for ground in ("paper", "panel"):
        for name in ("ink", "quiet", "good", "bad"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["bad"], colours["bad-panel"]) >= 4.5
    for name in ("c1", "c2", "c3", "c4", "c5", "c6"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    for name in ("fill", "warn"):
        assert contrast(colours[name], colours["track"]) >= 3.0, name


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    def linear(part: str) -> float:
        c = int(part, 16) / 255
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    r, g, b = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
