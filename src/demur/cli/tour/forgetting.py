"""Chapter three: learn from a stream, delete on request, hand out certificates."""

from __future__ import annotations

import numpy as np

from demur.cli.tour.stage import SHARE, Stage, accuracy
from demur.unlearning import UnlearningService
from demur.unlearning.records.certificate import Certificate

_TOGETHER = 10  # Records whose deletion is asked for at once.
_ALONE = 2


def play(stage: Stage) -> None:
    """Even or odd: learn all, forget some, verify the last certificate."""
    people = stage.people
    with (
        stage.console.status("learning and forgetting"),
        UnlearningService.open(
            stage.out / "live.db",
            mode="ogd",
            dim=people.embedded.shape[1],
            epsilon=0.8,
            delta=SHARE,
            requests_per_subject=1,
            ledger=stage.ledger,
            record_store="encrypted",
        ) as live,
    ):
        live.insert_many(people.embedded, people.parity, record_ids=range(len(people)))
        before = _accuracy(live, stage)
        answers = live.delete_many(range(_TOGETHER))
        answers += [live.delete(_TOGETHER + i) for i in range(_ALONE)]
        after = _accuracy(live, stage)
        checked = live.verify().ok
    # A request that cannot be met yet is queued instead; here there is room for all.
    certificates = [answer for answer in answers if isinstance(answer, Certificate)]
    certificate = certificates[-1]
    (stage.out / "certificate.json").write_text(certificate.to_json())
    stage.show(
        ("live model, even or odd", "accuracy"),
        (f"after {len(people):,} records", f"{before:.3f}"),
        (f"after {len(certificates)} deletions", f"{after:.3f}"),
    )
    stage.console.print(
        f"{len(certificates)} certificates, each for epsilon"
        f" {certificate.epsilon:.2f} at delta {certificate.delta:g}, at erasure. The"
        " drop is the noise that they added. Journal and ledger"
        f" {'agree' if checked else 'DISAGREE'}. This is a"
        " promise to those who leave: it is no privacy for those who stay, and it is"
        " never added to theirs."
    )
    entries = {entry.id: entry for entry in stage.ledger.entries()}
    for found in certificates:
        stage.ledger.annotate(entries[found.entry], "deletion", _facts(found))
    stage.state(
        f"{certificate.statement} Here shift / sigma is at most"
        f" {certificate.shift_bound / certificate.sigma:.3f}. To check it:\n"
        f"demur unlearn verify {stage.out / 'certificate.json'}"
        f" {stage.out / 'live.db'} --ledger {stage.out / 'ledger.db'}"
    )


def _facts(certificate: Certificate) -> dict[str, object]:
    return {
        "theorem": certificate.theorem,
        "statement": certificate.statement,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "tip": str(certificate.tip),
    }


def _accuracy(live: UnlearningService, stage: Stage) -> float:
    scores = np.array([live.predict(row) for row in stage.public.embedded])
    return accuracy(np.where(scores >= 0.0, 1.0, -1.0), stage.public.parity)
