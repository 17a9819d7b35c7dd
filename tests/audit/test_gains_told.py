"""What an attacker gains, where people read it: report, evidence, command line."""

import json
import re
from statistics import NormalDist

import pytest

from demur import Budget, Ledger, ReplaceOne
from demur.mechanisms import Gaussian
from demur.report import gather, render
from tests.commands import run as demur

NORMAL = NormalDist()
UNIT = ReplaceOne()
MU = 0.5
EXACT = {
    "advantage": 2 * NORMAL.cdf(MU / 2) - 1,
    "found_at_1_in_1000": NORMAL.cdf(NORMAL.inv_cdf(0.001) + MU),
    "found_at_1_in_100": NORMAL.cdf(NORMAL.inv_cdf(0.01) + MU),
    "named_of_10": NORMAL.cdf(NORMAL.inv_cdf(0.1) + MU),
    "named_of_1000": NORMAL.cdf(NORMAL.inv_cdf(0.001) + MU),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("told") / "ledger.db"
    with Ledger.open(place, dataset="x", budgets={UNIT: Budget(4.0, 1e-6)}) as ledger:
        # 0.4^2 + 0.3^2 = 0.5^2
        ledger.paid(Gaussian(2.5, {UNIT: 1.0}), label="a count")
        ledger.paid(Gaussian(1 / 0.3, {UNIT: 1.0}), label="another")
    return place


def told_on(page):
    cells = re.findall(r'data-number="budgets\.0\.gains\.(\w+)">([^<]+)<', page)
    return {name: float(text) for name, text in cells}


def test_the_report_tells_it_of_all_entries_at_once(place):
    with Ledger.open(place, read_only=True) as ledger:
        page = render(gather(ledger))
    told = told_on(page)
    assert told.keys() == EXACT.keys()
    for name, exact in EXACT.items():
        # An upper bound, in four digits.
        assert exact <= told[name] <= 1.02 * exact + 1e-4, name
    # The twin: a page with the numbers of one of its entries is seen.
    alone = 2 * NORMAL.cdf(0.2) - 1
    assert not EXACT["advantage"] <= alone


def test_the_report_tells_it_of_every_entry(place):
    with Ledger.open(place, read_only=True) as ledger:
        facts = gather(ledger)
    page = render(facts)
    assert [bool(entry.attacks) for entry in facts.entries] == [True, True]
    assert (
        page.count("What any attack can learn") == 4
    )  # shown, and in the data for programs


def test_the_command_line_tells_it_of_an_entry(place):
    shown = demur("ledger", "entry", str(place), "1", "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    gains = told["gains"] if "gains" in told else told["entry"]["gains"]
    exact = 2 * NORMAL.cdf(0.2) - 1
    assert exact <= gains[0]["membership_advantage"] <= 1.001 * exact
    found = re.search(r"at most (\S+) of 1,000 cases", gains[0]["statement"])
    assert found is not None, gains[0]["statement"]
    # One in a thousand at false alarms, and in detections what the profile allows.
    exact = 1000 * NORMAL.cdf(NORMAL.inv_cdf(0.001) + 0.4)
    assert exact <= float(found[1]) <= 1.02 * exact + 1e-3
