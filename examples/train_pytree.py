"""Private training of a plain pytree: charged, interrupted and resumed.

The data are scikit-learn's digits, which are public; a real run must not print the
number of its records.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import demur as dm
from demur.training import Checkpoint, Reporting, dp_sgd, fit

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)  # pixels are 0 to 16: a public range
held_out = np.arange(len(y)) % 4 == 0
data = {"x": X[~held_out], "y": y[~held_out].astype(np.int32)}


def logits(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss(params, batch):
    scores = logits(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()


params = {
    "w1": 0.2 * jax.random.normal(jax.random.key(0), (64, 32)),
    "b1": jnp.zeros(32),
    "w2": jnp.zeros((32, 10)),
    "b2": jnp.zeros(10),
}


class PowerCut(Exception):
    """Something that ends a run half-way."""


def power_cut(report):
    if report.step == 120:
        raise PowerCut


with tempfile.TemporaryDirectory() as folder:
    unit = dm.AddOrRemoveOne()
    ledger = dm.Ledger.open(
        Path(folder) / "digits.db",
        dataset="digits",
        budgets={unit: dm.Budget(epsilon=4.0, delta=1e-5)},
        filter=dm.Filter.pure(),
    )
    plan = (
        dp_sgd(iterations=200, sampling_prob=0.1, l2_clip_norm=1.0, normalize_by=134.0)
        .calibrate(ledger)
        .make()
    )
    run = {
        "optimizer": optax.sgd(2.0, momentum=0.8),
        "ledger": ledger,
        "label": "digits, two layers",
        "average": 0.95,
        "checkpoint": Checkpoint(Path(folder) / "run", every=50),
    }
    try:
        fit(plan, loss, params, data, reporting=Reporting(power_cut), **run)
    except PowerCut:
        print("the run was interrupted; it continues from its checkpoint")
    trained = fit(plan, loss, params, data, **run)
    predicted = logits(trained.average, X[held_out]).argmax(-1)
    print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
    print(trained.statement(records=int((~held_out).sum())))
    try:
        fit(plan, loss, params, data, **run | {"checkpoint": None})
    except dm.BudgetExceeded as error:
        print(f"\nA second run is a second release: {error}")
    ledger.close()
