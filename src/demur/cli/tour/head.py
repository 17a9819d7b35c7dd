"""Chapter one: a softmax head under Ball-DP, and its cost as a function of distance."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression

from demur.cli.tour.stage import NEAR, REPLACED, SHARE, Stage, accuracy
from demur.convex import BallSoftmaxClassifier
from demur.core.rounding import printed_up

# A ball of 0.3 in pixels is one of 0.1 behind the encoder.
RADIUS = 0.1


def classifier(epsilon: float, stage: Stage) -> BallSoftmaxClassifier:
    """A head whose release hides a move by `RADIUS` with `epsilon`."""
    return BallSoftmaxClassifier(
        epsilon=epsilon,
        delta=SHARE,
        radius=RADIUS,
        space="embedding",
        norm_bound=1.0,
        lam=0.02,
        classes=range(10),
        ledger=stage.ledger,
    )


def play(stage: Stage) -> None:
    """Fit, release once, and read the curve."""
    people, public = stage.people, stage.public
    plain = LogisticRegression(max_iter=2000).fit(people.embedded, people.labels)
    reached = accuracy(plain.predict(public.embedded), public.labels)
    head = classifier(1.0, stage).fit(people.embedded, people.labels)
    found = accuracy(head.predict(public.embedded), public.labels)
    entry = head.privacy_.entry
    stage.show(
        ("head", "accuracy", f"epsilon, {NEAR.describe()}", "epsilon, any replacement"),
        ("without noise", f"{reached:.3f}", "none promised", "none promised"),
        (
            "released once",
            f"{found:.3f}",
            printed_up(stage.ledger.epsilon(unit=NEAR)),
            printed_up(stage.ledger.epsilon(unit=REPLACED)),
        ),
    )
    stage.console.print(
        "One noise, one release; what it hides depends on how far an image moves. The"
        " label, the number of images and the settings are not protected."
    )
    stage.record(entry, "accuracy on held-out images", found, reached)
    stage.state(head.privacy_.statement())
