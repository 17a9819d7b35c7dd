"""Private training of a Flax (NNX) model, with hardened noise at every step."""

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from demur.training import dp_sgd, fit

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)
held_out = np.arange(len(y)) % 4 == 0
data = {"x": X[~held_out], "y": y[~held_out].astype(np.int32)}


class Network(nnx.Module):
    """Two dense layers."""

    def __init__(self, rngs):
        self.first = nnx.Linear(64, 32, rngs=rngs)
        self.second = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


graph, params = nnx.split(Network(nnx.Rngs(0)), nnx.Param)


def loss(params, batch):
    scores = nnx.merge(graph, params)(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()


plan = dp_sgd(
    iterations=150,
    sampling_prob=0.1,
    epsilon=4.0,
    delta=1e-5,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=134.0,
    noise="lattice",
).make()
trained = fit(plan, loss, params, data, optimizer=optax.sgd(1.0, momentum=0.8))
predicted = nnx.merge(graph, trained.value)(jax.numpy.asarray(X[held_out])).argmax(-1)
print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
print(trained.statement())
