"""A large ledger reads right (how fast is printed, and never asserted).

A sum of three thousand entries goes through the same code as one of a hundred thousand;
the larger ones are for `make deep`.
"""

import json
import math

import pytest

from demur import Ledger
from demur.core import accounting
from demur.core.accounting.events import Composed, GaussianEvent
from demur.core.accounting.gaussian import gaussian_epsilon
from tests.ledger import large
from tests.ledger.kit import run_script

pytestmark = pytest.mark.slow


def sizes(large):
    """How many entries, and how many of them differ."""
    deep = pytest.param(large, 1000, marks=pytest.mark.deep)
    return pytest.mark.parametrize(("entries", "distinct"), [(1_500, 100), deep])


@sizes(100_000)
def test_a_large_ledger_reads_right(ledger_url, capsys, entries, distinct):
    large.build(ledger_url, entries, distinct)
    readings = json.loads(run_script("large.py", "read", ledger_url))
    with capsys.disabled():
        print(f"\n{entries:,} entries, a fresh process: {readings}")
    assert readings["entries"] == entries
    mu_squared = large.mu_squared(entries, distinct)
    gaussians = gaussian_epsilon(math.sqrt(mu_squared), 1e-5)
    composed = GaussianEvent(1.0 / math.sqrt(mu_squared))
    whole = accounting.price(Composed((composed, *large.plans(10))), 1e-5)
    assert gaussians < readings["epsilon"] < readings["enforced"] <= 40.0
    assert readings["epsilon"] == pytest.approx(whole, rel=2e-3)
    with Ledger.open(ledger_url) as ledger:
        verified = ledger.verify(ledger.tip())
    assert verified.ok and verified.rows == entries


@sizes(20_000)
def test_a_ledger_of_gaussians_alone_reads_in_closed_form(tmp_path, entries, distinct):
    path = tmp_path / "ledger.db"
    large.build(path, entries, distinct, plan_count=0)
    readings = json.loads(run_script("large.py", "read", path))
    mu = math.sqrt(large.mu_squared(entries, distinct, plan_count=0))
    closed = gaussian_epsilon(mu, 1e-5)
    assert readings["epsilon"] == pytest.approx(closed, rel=1e-12)
    assert readings["epsilon"] >= closed * (1 - 1e-13)
