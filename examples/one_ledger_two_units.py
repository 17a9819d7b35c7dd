"""One release, read at two units: presence of a record, and a small change to it."""

import numpy as np

import demur as dm
from demur.core.curve import PiecewiseLinear
from demur.mechanisms import Gaussian

rng = np.random.default_rng(0)
ages = rng.uniform(18, 90, size=(5000, 1))
scaled, _, space = dm.to_unit_cube(ages, low=0.0, high=120.0, space="years")
total = scaled.sum()

# Adding a record moves the sum by at most 1; moving one by r moves it by r.
presence, nearby = dm.AddOrRemoveOne(), dm.Ball(0.1, space=space.name)
mechanism = Gaussian.calibrated(
    epsilon=0.5,
    delta=1e-6,
    sensitivity={presence: 1.0, space.name: PiecewiseLinear.linear(1.0, cap=1.0)},
    unit=presence,
    name="a noisy sum of ages",
)
# The cube comes from years by a map with a known constant, which the ledger can use.
ledger = dm.Ledger(
    {presence: dm.Budget(1.0, 1e-6), nearby: dm.Budget(0.2, 1e-6)},
    maps=[space.from_source] if space.from_source else [],
)
release = mechanism.release([total], ledger=ledger, label="sum of ages")

print("sum of ages / 120, private:", round(float(release.value[0]), 2))
for unit in (presence, nearby, dm.Ball(6.0, space="years"), dm.ReplaceOne()):
    try:
        print(f"{unit}: epsilon {ledger.epsilon(1e-6, unit):.3f}")
    except dm.DemurError:
        print(f"{unit}: the ledger has no cost at this unit")
print(release.statement())
