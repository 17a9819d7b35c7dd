"""Private training of a text classifier in PyTorch: a bag of words, two layers.

    python train_torch_text.py [reviews.csv]

The file has the columns text and label (0 or 1). Without one a few made-up reviews are
trained on, which shows that it runs.
"""

import csv
import sys
import zlib

import numpy as np
import optax
import torch
from torch import nn

from demur.adapters.torch import PrivateModule
from demur.training import dp_sgd, fit

WORDS, LENGTH = 1000, 12

if len(sys.argv) > 1:
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
    steps = 1000
else:
    rng = np.random.default_rng(0)
    words = [["bad", "dull", "weak"], ["good", "fine", "great"]]
    labels = rng.integers(0, 2, 500)
    rows = [(" ".join(["the", "film", *rng.choice(words[y], 3)]), y) for y in labels]
    steps = 40


def tokens(text):
    """Words as numbers, by a hash: a vocabulary of the data would tell about it."""
    found = [1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in text.lower().split()]
    return (found + [0] * LENGTH)[:LENGTH]


class Classifier(nn.Module):
    """The mean of the words' rows, and two layers."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16, mode="mean", padding_idx=0)
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(torch.relu(self.first(self.words(tokens))))


def loss(module, batch):
    return nn.functional.cross_entropy(module(batch["tokens"]), batch["label"])


x = np.array([tokens(text) for text, _ in rows], np.int32)
y = np.array([label for _, label in rows], np.int32)
held_out = np.arange(len(y)) % 5 == 0
n = int((~held_out).sum())
private = PrivateModule(Classifier(), loss)
plan = dp_sgd(
    iterations=steps,
    sampling_prob=0.25,
    epsilon=8.0,
    delta=1e-4,
    neighboring_relation="ADD_OR_REMOVE_ONE",
    l2_clip_norm=1.0,
    normalize_by=0.25 * n,
).make()
data = {"tokens": x[~held_out], "label": y[~held_out]}
trained = fit(plan, private, data, optimizer=optax.adam(0.02))
module = private.to_module(trained)
with torch.no_grad():
    predicted = module(torch.as_tensor(x[held_out])).argmax(-1).numpy()
print(f"accuracy {float((predicted == y[held_out]).mean()):.3f}")
print(trained.statement())
