"""A private classifier: one release, one ledger, and its epsilon by distance.

The data are scikit-learn's digits, scaled by their public range. They are public, so
the example may print what a real run must not, such as the number of records.
"""

import numpy as np
from sklearn.datasets import load_digits

from demur import Ball, Budget, BudgetExceeded, Ledger
from demur.convex import BallPrototypeClassifier, BallSoftmaxClassifier

X, y = load_digits(return_X_y=True)
X = X / 16.0  # pixels are 0 to 16: a public range
held_out = np.arange(len(y)) % 4 == 0
train, test = (X[~held_out], y[~held_out]), (X[held_out], y[held_out])

# What is protected: a move of one image by at most 0.5 pixels (L2), its label kept.
unit = Ball(0.5, space="pixels")
ledger = Ledger(Budget(epsilon=4.0, delta=1e-6), unit=unit, dataset="digits")
shared = {"delta": 1e-6, "radius": 0.5, "space": "pixels", "norm_bound": 4.0}

prototypes = BallPrototypeClassifier(epsilon=1.0, ledger=ledger, **shared).fit(*train)
print(f"prototypes: accuracy {prototypes.score(*test):.3f}")

softmax = BallSoftmaxClassifier(
    epsilon=3.0, lam=0.03, classes=range(10), ledger=ledger, **shared
).fit(*train)
print(f"softmax:    accuracy {softmax.score(*test):.3f}")

privacy = softmax.privacy_
print("\nepsilon of the softmax head, by how far the image moves:")
for radius, epsilon in privacy.curve([0.1, 0.25, 0.5, 1.0, 2.0, 8.0]):
    print(f"  {radius:5.2f}  {epsilon:7.3f}")
print(f"  any replacement, label included: {privacy.full_replacement_epsilon:.3f}")
print(f"  ten candidates, guessed right:   {privacy.reconstruction_bound(0.1):.3f}")
print(f"\n{privacy.statement(records=len(train[0]))}")

try:
    softmax.fit(*train)
except BudgetExceeded as error:
    print(f"\nA second fit is a second release: {error}")
