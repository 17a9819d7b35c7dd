"""Private training of an Equinox model, with banded noise (BandMF)."""

import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

from demur.training import BandMFExecutionPlanConfig, fit

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)
held_out = np.arange(len(y)) % 4 == 0
data = (X[~held_out], y[~held_out].astype(np.int32))

model = eqx.nn.MLP(64, 10, width_size=32, depth=1, key=jax.random.key(0))
# Arrays are trained; functions and sizes are the same for everybody.
params, static = eqx.partition(model, eqx.is_inexact_array)


def loss(params, batch):
    x, labels = batch
    scores = jax.vmap(eqx.combine(params, static))(x)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


# The next three steps cancel part of each step's noise. Batches come from the four
# groups in turn, 134 of 1347 records on average.
plan = BandMFExecutionPlanConfig(
    iterations=100,
    num_bands=4,
    sampling_prob=0.4,
    epsilon=4.0,
    delta=1e-5,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=134.0,
).make()
trained = fit(plan, loss, params, data, optimizer=optax.sgd(2.0, momentum=0.8))
private = eqx.combine(trained.value, static)
predicted = jax.vmap(private)(X[held_out]).argmax(-1)
print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
print(trained.statement())
