"""A model on a stream with deletions on request, each charged to a ledger.

The data are synthetic, so the example may print what a real run must not.
"""

import numpy as np

from demur import Budget, Ledger
from demur.core.adjacency import Erasure
from demur.unlearning import CapacityExhausted, MemoryPair, PrivacyOdometer

rng = np.random.default_rng(0)
X = rng.normal(size=(6000, 10))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = X @ (rng.normal(size=10) / 3.0) + 0.05 * rng.normal(size=6000)

# Each person has a deletion budget of (1, 1e-5), whatever others ask for.
ledger = Ledger(Budget(epsilon=1.0, delta=1e-5), unit=Erasure(), dataset="a stream")
odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1, gamma=0.5, ledger=ledger)
model = MemoryPair(10, odometer, radius=1.0, metrics=True)
model.on("phase", lambda happened: print(f"  now in {happened.phase.name}"))

print("calibrating on 500 records")
for i in range(500):
    model.calibrate_step(X[i], Y[i], record_id=f"r{i}")
stats = model.finalize_calibration(gamma_learn=0.006)
print(f"N* = {stats.N_star}")

i = 500
while not model.ready_to_predict:
    model.insert(X[i], Y[i], record_id=f"r{i}", subject_id=f"person {i // 3}")
    i += 1
odometer.finalize_with(stats, T_estimate=20_000)
print(
    f"room for {odometer.deletion_capacity} deletions, sigma {odometer.sigma_step:.4f}"
)

# Ten inserts, one deletion: everything of one person at once.
for i in range(model.inserts_seen, 6000):
    model.insert(X[i], Y[i], record_id=f"r{i}", subject_id=f"person {i // 3}")
    if i % 10 == 9:
        try:
            model.delete(subject_id=f"person {i // 3 - 1}")
        except CapacityExhausted as refused:
            print(f"refused: {refused.reason}")
            break

metrics = model.metrics()
print(f"{metrics.deletes_seen} people deleted, {metrics.capacity_remaining} left")
print(f"average loss {metrics.avg_loss_empirical:.4f}")
print(f"epsilon for each of them: {odometer.epsilon_spent:.3f}")
print(f"\n{ledger.summary()}")
assert ledger.verify(ledger.tip()).ok
