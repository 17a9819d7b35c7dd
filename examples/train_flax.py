"""Private training of a Flax (NNX) model with dropout, and with hardened noise."""

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from demur.training import dp_sgd, fit
from demur.training.finetuning import select

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)
held_out = np.arange(len(y)) % 4 == 0
data = {"x": X[~held_out], "y": y[~held_out].astype(np.int32)}


class Network(nnx.Module):
    """Two dense layers; dropout has its own Rngs, as NNX has it."""

    def __init__(self, rngs):
        self.first = nnx.Linear(64, 32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.second = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(nnx.tanh(self.first(x))))


graph, params, rest = nnx.split(Network(nnx.Rngs(params=0, dropout=1)), nnx.Param, ...)


def network(params):
    return nnx.merge(graph, params, rest, copy=True)  # dropout counts its calls


def loss(params, batch, key):
    model = network(params)
    nnx.reseed(model, dropout=key)  # a key of its own for each example
    scores = model(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()


plan = dp_sgd(
    iterations=100,
    sampling_prob=0.1,
    epsilon=4.0,
    delta=1e-5,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=134.0,
    noise="lattice",
).make()
everything = select(params, "*")
trained = fit(
    plan,
    everything.with_loss(loss, takes_key=True),
    data,
    optimizer=optax.sgd(1.0, momentum=0.8),
)
private = network(everything.merge(trained.value))
private.eval()
accuracy = (private(X[held_out]).argmax(-1) == y[held_out]).mean()
print(f"accuracy {float(accuracy):.3f}")
print(trained.statement())
