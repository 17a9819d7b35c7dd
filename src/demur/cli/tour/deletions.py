"""Chapter three: learn from a stream, delete on request, issue certificates."""

from __future__ import annotations

import numpy as np

from demur.cli.tour.session import SHARE, Session, accuracy
from demur.core.rounding import printed_up
from demur.unlearning import UnlearningService
from demur.unlearning.records.certificate import Certificate

_TOGETHER = 10  # Records whose deletion is asked for at once.
_ALONE = 2


def run(session: Session) -> None:
    """Even or odd: learn all, delete some, verify the last certificate."""
    people = session.people
    with (
        session.console.status("learning and deleting"),
        UnlearningService.open(
            session.out / "live.db",
            mode="ogd",
            dimension=people.embedded.shape[1],
            epsilon=0.8,
            delta=SHARE,
            requests_per_subject=1,
            ledger=session.ledger,
            record_store="encrypted",
        ) as live,
    ):
        live.insert_many(people.embedded, people.parity, record_ids=range(len(people)))
        before = _accuracy(live, session)
        answers = live.delete_many(range(_TOGETHER))
        answers += [live.delete(_TOGETHER + i) for i in range(_ALONE)]
        after = _accuracy(live, session)
        checked = live.verify().ok
    # A request that cannot be carried out yet is queued; here all can be.
    certificates = [answer for answer in answers if isinstance(answer, Certificate)]
    certificate = certificates[-1]
    (session.out / "certificate.json").write_text(certificate.to_json())
    session.show(
        ("live model, even or odd", "accuracy"),
        (f"after {len(people):,} records", f"{before:.3f}"),
        (f"after {len(certificates)} deletions", f"{after:.3f}"),
    )
    session.console.print(
        f"{len(certificates)} certificates, each for epsilon"
        f" {printed_up(certificate.epsilon)} at delta {printed_up(certificate.delta)},"
        " at erasure. The drop is the noise that they added. Journal and ledger"
        f" {'agree' if checked else 'DISAGREE'}. A deletion budget protects the people"
        " who ask for deletion. It gives no privacy to the others, and it is never"
        " added to theirs."
    )
    entries = {entry.id: entry for entry in session.ledger.entries()}
    for issued in certificates:
        session.ledger.annotate(entries[issued.entry], "deletion", _facts(issued))
    session.show_statement(
        f"{certificate.statement} Here shift / sigma is at most"
        f" {certificate.shift_bound / certificate.sigma:.3f}. To check it:\n"
        f"demur unlearn verify {session.out / 'certificate.json'}"
        f" {session.out / 'live.db'} --ledger {session.out / 'ledger.db'}"
    )


def _facts(certificate: Certificate) -> dict[str, object]:
    return {
        "theorem": certificate.theorem,
        "statement": certificate.statement,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "tip": str(certificate.tip),
    }


def _accuracy(live: UnlearningService, session: Session) -> float:
    scores = np.array([live.predict(row) for row in session.public.embedded])
    return accuracy(np.where(scores >= 0.0, 1.0, -1.0), session.public.parity)
