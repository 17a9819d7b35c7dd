"""Private training of a Flax (Linen) model."""

import flax.linen as nn
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

from demur.training import dp_sgd, fit

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
held_out = np.arange(len(y)) % 4 == 0
data = {"x": X[~held_out], "y": y[~held_out].astype(np.int32)}


class Network(nn.Module):
    """A convolution, GroupNorm in place of BatchNorm, and a dense layer."""

    @nn.compact
    def __call__(self, x):
        x = nn.GroupNorm(num_groups=2)(nn.Conv(8, (3, 3), strides=2)(x))
        return nn.Dense(10)(nn.tanh(x).reshape(x.shape[0], -1))


model = Network()
params = model.init(jax.random.key(0), X[:1])["params"]


def loss(params, batch):
    scores = model.apply({"params": params}, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()


plan = dp_sgd(
    iterations=100,
    sampling_prob=0.1,
    epsilon=4.0,
    delta=1e-5,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=134.0,
).make()
trained = fit(plan, loss, params, data, optimizer=optax.sgd(1.0, momentum=0.8))
predicted = model.apply({"params": trained.value}, X[held_out]).argmax(-1)
print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
print(trained.statement())
