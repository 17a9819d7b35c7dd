"""Chapter four: DP-SGD with a plan that ties sampling, noise and accounting."""

from __future__ import annotations

import numpy as np

from demur.cli.tour.session import DELTA, REPLACED, SHARE, Part, Session
from demur.core.rounding import printed_up
from demur.training import dp_sgd, fit, named_optimizer
from demur.training.models import MLP, accuracy, cross_entropy

_STEPS = 40
_SHARE_OF_IMAGES = 0.5
_BATCH = 650.0  # sums are divided by it: public, near the expected size


def run(session: Session) -> None:
    """Sample, clip, add noise, step; one reservation pays for all steps."""
    people, public = session.people, session.public
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
        ledger=session.ledger,
        label="a network of two layers",
        average=0.9,
    )
    test = _data(public)
    epsilon = trained.entry.epsilon(REPLACED, DELTA)
    reached = accuracy(model, trained.average, test["x"], test["y"])
    without_noise = _without_noise(people, public)
    session.show(
        ("network 16-32-10", "accuracy", "epsilon, any replacement"),
        ("without noise", f"{without_noise:.3f}", "none"),
        (f"{_STEPS} private steps", f"{reached:.3f}", printed_up(epsilon)),
    )
    session.console.print(
        "Sampling, clipping, noise and cost are parts of one plan, so that they cannot"
        " disagree. The batch sizes that were drawn are secret and not shown."
    )
    session.note_utility(
        trained.entry, "accuracy on held-out images", reached, without_noise
    )
    session.show_statement(trained.statement())


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
