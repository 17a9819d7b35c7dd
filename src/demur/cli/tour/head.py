"""Chapter one: a softmax head under Ball-DP, and its cost as a function of distance."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression

from demur.cli.tour.session import NEAR, REPLACED, SHARE, Session, accuracy
from demur.convex import BallSoftmaxClassifier
from demur.core.rounding import printed_up

# A ball of 0.3 in pixels is one of 0.1 behind the encoder.
RADIUS = 0.1


def classifier(epsilon: float, session: Session) -> BallSoftmaxClassifier:
    """A head whose release protects a move by `RADIUS` with `epsilon`."""
    return BallSoftmaxClassifier(
        epsilon=epsilon,
        delta=SHARE,
        radius=RADIUS,
        space="embedding",
        norm_bound=1.0,
        lam=0.02,
        classes=range(10),
        ledger=session.ledger,
    )


def run(session: Session) -> None:
    """Fit, release once, and read the cost at two units."""
    people, public = session.people, session.public
    plain = LogisticRegression(max_iter=2000).fit(people.embedded, people.labels)
    without_noise = accuracy(plain.predict(public.embedded), public.labels)
    head = classifier(1.0, session).fit(people.embedded, people.labels)
    reached = accuracy(head.predict(public.embedded), public.labels)
    entry = head.privacy_.entry
    session.show(
        ("head", "accuracy", f"epsilon, {NEAR.describe()}", "epsilon, any replacement"),
        ("without noise", f"{without_noise:.3f}", "none", "none"),
        (
            "released once",
            f"{reached:.3f}",
            printed_up(session.ledger.epsilon(unit=NEAR)),
            printed_up(session.ledger.epsilon(unit=REPLACED)),
        ),
    )
    session.console.print(
        "One release costs less for a small move of an image than for any replacement."
        " The label, the number of images and the settings are not protected."
    )
    session.note_utility(entry, "accuracy on held-out images", reached, without_noise)
    session.show_statement(head.privacy_.statement())
