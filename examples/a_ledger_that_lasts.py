"""A durable ledger: budgets, a reservation, a refusal, an exported tip, a check."""

import tempfile
from pathlib import Path

import demur as dm
from demur.mechanisms import Gaussian

unit = dm.AddOrRemoveOne()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "visits.db"
    with dm.Ledger.open(
        path, dataset="visits", budgets={unit: dm.Budget(1.0, 1e-6)}
    ) as ledger:
        daily = Gaussian(sigma=25.0, sensitivity={unit: 1.0}, name="a daily count")
        month = ledger.reserve(daily, count=30, label="daily counts in June")
        for _ in range(30):
            month.draw()  # durable before it returns; noise may be drawn now
        try:
            month.draw()
        except dm.BudgetExceeded as error:
            print("declined:", error)
        tip = ledger.tip()

    with dm.Ledger.open(path, tip=tip) as again:
        print(again.summary())
        print(again.verify(tip))
