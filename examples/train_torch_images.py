"""Private training of a CNN in PyTorch, as the tutorials for CIFAR-10 have it.

    python train_torch_images.py [cifar10.npz]

The file has the arrays x_train (n, 32, 32, 3), y_train, x_test and y_test. Without one
a few made-up images are trained on, which shows that it runs.
"""

import sys

import numpy as np
import optax
import torch
from torch import nn

from demur.adapters.torch import PrivateModule
from demur.training import dp_sgd, fit

if len(sys.argv) > 1:
    with np.load(sys.argv[1]) as file:
        x_train, y_train, x_test, y_test = (
            file[name] for name in ("x_train", "y_train", "x_test", "y_test")
        )
    steps, batch, epsilon = 2000, 2048, 8.0
else:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 100)
    x = rng.integers(0, 80, (100, 16, 16, 3))
    x[np.arange(100), :, y] += 150  # a bright line shows the class
    x_train, y_train, x_test, y_test = x[:80], y[:80], x[80:], y[80:]
    steps, batch, epsilon = 5, 20, 8.0


def images(x):
    """Channels first, from -1 to 1: by public numbers, not by means of the data."""
    return (x.transpose(0, 3, 1, 2) / 127.5 - 1.0).astype(np.float32)


module = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    nn.GroupNorm(4, 16),  # BatchNorm looks across examples, and is refused
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.GroupNorm(4, 32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 10),
)


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch["image"]), batch["label"])


private = PrivateModule(module, loss)
plan = dp_sgd(
    iterations=steps,
    sampling_prob=batch / len(x_train),
    epsilon=epsilon,
    delta=1e-5,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=float(batch),
).make()
data = {"image": images(x_train), "label": y_train.astype(np.int32)}
trained = fit(plan, private, data, optimizer=optax.adam(2e-3))

module = private.to_module(trained)
torch.save(module.state_dict(), "cnn.pt")
with torch.no_grad():
    predicted = module(torch.as_tensor(images(x_test))).argmax(-1).numpy()
print(f"accuracy {float((predicted == y_test).mean()):.3f}")
print(trained.statement())
