"""Reports on Spark, paid for at a service: the driver asks, executors never do."""

import pytest

from demur.adapters.spark import write_reports
from demur.core.adjacency import ReplaceOne
from demur.errors import ApprovalPending, BudgetExceeded
from demur.ledger import ApprovalRule, Budget
from demur.mechanisms.bpm import BPM
from tests.adapters.spark.kit import NAMES, by_id, same, some_points, table_of
from tests.serve.kit import serving

pytestmark = pytest.mark.slow
POINTS, IDS = some_points(60)
TERMS = {"budgets": {ReplaceOne(): Budget(20.0)}, "filter": "pure"}


def test_reports_wait_are_approved_and_drawn_once(spark, tmp_path):
    df = spark.createDataFrame(table_of(POINTS, IDS)).repartition(2)
    rule = ApprovalRule(above=6.0)
    with serving(str(tmp_path / "v.db"), tmp_path, approval=rule, **TERMS) as served:

        def write(ledger, epsilon, place, **more):
            mechanism = BPM(epsilon, "auto", 2)
            path = str(tmp_path / place)
            return write_reports(
                df, mechanism, NAMES, "id", path, ledger=ledger, **more
            )

        with served.open() as ledger:
            entry = write(ledger, 4.0, "at once")
            assert entry.actor == "the analyst" and not ledger.unfinished()
            call = {"idempotency_key": "k"}
            with pytest.raises(ApprovalPending):
                write(ledger, 8.0, "a", **call)
            assert not (tmp_path / "a").exists() or not list((tmp_path / "a").iterdir())
            with served.open("officer") as officer:
                officer.approve(ledger.requests()[0].sequence, reason="yes")
            write(ledger, 8.0, "a", **call)
            with pytest.raises(BudgetExceeded):
                write(ledger, 16.0, "b", idempotency_key="b")
            assert len(ledger.entries()) == 2
        found = by_id(spark.read.parquet(str(tmp_path / "a")))
        assert len(found[0]) == len(IDS) and same(found[:1], (sorted(IDS),))
        assert served.ledger.verify().ok and not served.ledger.unfinished()
