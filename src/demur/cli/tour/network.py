"""Chapter four: DP-SGD by a plan, where sampling, noise and accounting agree."""

from __future__ import annotations

import numpy as np

from demur.cli.tour.stage import DELTA, REPLACED, SHARE, Part, Stage
from demur.core.rounding import printed_up
from demur.training import dp_sgd, fit
from demur.training.models import MLP, accuracy, cross_entropy
from demur.training.optimizers import named_optimizer

_STEPS = 40
_SHARE_OF_IMAGES = 0.5
_BATCH = 650.0  # What sums are divided by: about the expected size, chosen in public.


def play(stage: Stage) -> None:
    """Sample, clip, add noise, step: one reservation pays for all of it."""
    people, public = stage.people, stage.public
    model = MLP(inputs=people.embedded.shape[1], hidden=(32,), classes=10)
    plan = dp_sgd(
        iterations=_STEPS,
        sampling_prob=_SHARE_OF_IMAGES,
        l2_clip_norm=1.0,
        normalize_by=_BATCH,
        epsilon=3.0,
        delta=SHARE,
        neighboring_relation="REPLACE_ONE",
    ).make()
    trained = fit(
        plan,
        cross_entropy(model),
        model.init(0),
        _data(people),
        optimizer=named_optimizer("sgd", 4.0, momentum=0.5),
        ledger=stage.ledger,
        label="a network of two layers",
        average=0.9,
    )
    test = _data(public)
    epsilon = trained.entry.epsilon(REPLACED, DELTA)
    found = accuracy(model, trained.average, test["x"], test["y"])
    reached = _without_noise(people, public)
    stage.show(
        ("network 16-32-10", "accuracy", "epsilon, any replacement"),
        ("without noise", f"{reached:.3f}", "none promised"),
        (f"{_STEPS} private steps", f"{found:.3f}", printed_up(epsilon)),
    )
    stage.console.print(
        "The plan is one object: who is sampled, how gradients are clipped, how much"
        " noise is added and what it costs cannot disagree. The batch sizes that were"
        " drawn are secret and shown nowhere."
    )
    stage.record(trained.entry, "accuracy on held-out images", found, reached)
    stage.state(trained.statement())


def _data(part: Part) -> dict[str, np.ndarray]:
    return {
        "x": part.embedded.astype(np.float32),
        "y": part.labels.astype(np.int32),
    }


def _without_noise(people: Part, public: Part) -> float:
    """The same network by scikit-learn."""
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier((32,), activation="tanh", max_iter=300, tol=1e-3)
    network.set_params(random_state=0, learning_rate_init=0.01)
    network.fit(people.embedded, people.labels)
    return float(network.score(public.embedded, public.labels))
