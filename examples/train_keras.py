"""Private training of a Keras model, which runs on JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import keras
import numpy as np
import optax
from sklearn.datasets import load_digits

from demur.training import dp_sgd, fit

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)
held_out = np.arange(len(y)) % 4 == 0
data = {"x": X[~held_out], "y": y[~held_out].astype(np.int32)}

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="tanh"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(10),
    ]
)
params = [variable.value for variable in model.trainable_variables]
others = [variable.value for variable in model.non_trainable_variables]


def loss(params, batch):
    scores, _ = model.stateless_call(params, others, batch["x"])
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
# Back into the model, which is saved and served as any other.
for variable, value in zip(model.trainable_variables, trained.value, strict=True):
    variable.assign(value)
predicted = np.asarray(model(X[held_out])).argmax(-1)
print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
print(trained.statement())
