"""A model in the model's place: retrained, renewed, or restored from a snapshot.

A record that is not in the new model any more is deleted by that, exactly: nothing of
it is left in the state, and its certificate says so (theorem "retrain", epsilon 0).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike
from sqlalchemy.engine import Connection

from demur import __version__
from demur.durable.clock import now
from demur.unlearning.errors import (
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    SnapshotRefused,
)
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.records import journal, store
from demur.unlearning.records.certificate import VERSION, Certificate, stamped
from demur.unlearning.records.journal import Body
from demur.unlearning.records.snapshot import Snapshot, decode, encode
from demur.unlearning.records.tables import Learned
from demur.unlearning.service import intents
from demur.unlearning.service.charges import Till
from demur.unlearning.service.state import Keeper

Record: TypeAlias = (
    tuple[str | int, ArrayLike, float]
    | tuple[str | int, ArrayLike, float, str | int | None]
)
# Theorems of records that the new model never saw, and what they say.
WITHOUT_NOISE = {
    "retrain": "The model was trained anew without the record.",
    "restore": "The model went back to its state from before the record was learned.",
}


@dataclass(frozen=True)
class Gathered:
    """A record that the new model will know."""

    record: Learned
    x: Array
    y: float
    new: bool


def gather(
    keeper: Keeper,
    connection: Connection,
    records: Iterable[Record] | None,
    without: set[str],
) -> list[Gathered]:
    """Records for a new model, each checked against what was learned."""
    columns = store.records.c
    kept = {
        row.mark: Learned(row.mark, row.generation, row.subject, row.content)
        for row in connection.execute(sa.select(store.records).where(columns.live))
    }
    if records is None:
        if keeper.vault is None:
            raise RecordNeeded(
                "there is no encrypted store: give the records that stay, as"
                " (record_id, x, y). Nothing has changed."
            )
        return [
            Gathered(kept[mark], x, y, False)
            for mark, x, y in keeper.vault.everything(connection)
            if mark in kept and mark not in without
        ]
    found: dict[str, Gathered] = {}
    for record_id, x, y, *rest in records:
        mark = keeper.marks.record(record_id)
        if mark in without:
            continue
        keeper.mode.check(x, y)
        if mark in found:
            raise RecordExists("an id occurs twice among the records to retrain on")
        content = keeper.marks.content(x, y)
        point = np.asarray(x, dtype=np.float64)
        if mark in kept:
            if kept[mark].content != content:
                raise RecordMismatch(
                    "a record to retrain on is not what was learned under its id."
                    " Nothing has changed."
                )
            found[mark] = Gathered(kept[mark], point, float(y), False)
            continue
        if mark in keeper.index:
            raise RecordExists(
                "a record to retrain on was deleted: leave it out, and insert it"
                " afterwards if its owner wants it back. Nothing has changed."
            )
        subject = rest[0] if rest else None
        who = (
            keeper.marks.alone(mark)
            if subject is None
            else keeper.marks.subject(subject)
        )
        found[mark] = Gathered(Learned(mark, 1, who, content), point, float(y), True)
    return list(found.values())


def begin(
    keeper: Keeper, till: Till, found: Sequence[Gathered]
) -> dict[str, Certificate]:
    """A new epoch on these records; the certificates of all others, by mark.

    The caller opens the ledger of the new epoch, and tidies up.
    """
    mode = keeper.terms.model()
    if found:
        X, Y = np.array([g.x for g in found]), np.array([g.y for g in found])
        # A mode that can take a batch gets closer to its minimum than event by event.
        learn: Callable[[Array, Array], object] = getattr(mode, "fit", mode.insert_many)
        learn(X, Y)
    new = [g for g in found if g.new]
    stay = {g.record.mark for g in found}
    lost = [m for m, generation in keeper.index.items() if generation > 0]
    lost = [mark for mark in lost if mark not in stay]
    gone = _certificates(keeper, till, lost, mode, "retrain", keeper.epoch + 1)
    with intents.replacing(keeper, till) as paid, keeper.step():
        old, keeper.epoch = keeper.epoch, keeper.epoch + 1
        bodies: list[Body] = [
            keeper.row(
                "retrain",
                records=len(found),
                new=len(new),
                drops=len(gone),
                before=old,
                time=now(),
                **paid,
            ),
            *(
                keeper.row(
                    "insert",
                    record=g.record.mark,
                    generation=g.record.generation,
                    subject=g.record.subject,
                )
                for g in new
            ),
            *_drops(keeper, gone),
        ]
        if keeper.vault is not None:
            for g in new:
                keeper.vault.seal(g.record.mark, g.record.generation, g.x, g.y)
        return keeper.replace(
            mode,
            bodies,
            gone,
            learned=[g.record for g in new],
            tick=len(found),
            new_epoch=True,
        )


def renew(keeper: Keeper, found: Sequence[Gathered]) -> None:
    """Newton steps on the live records, for a mode that can make use of them."""
    steps = getattr(keeper.mode, "renew", None)
    if steps is None:
        raise ValueError(f"mode {keeper.terms.mode!r} has nothing to renew")
    # One left out and a stranger in its place would be as many, and another model.
    live = {mark for mark, generation in keeper.index.items() if generation > 0}
    if live != {g.record.mark for g in found}:
        raise RecordMismatch(
            "these are not the live records, all of them and no others. Nothing has"
            " changed."
        )
    copy = keeper.mode.fresh()
    copy.restore(keeper.mode.state())
    X, Y = np.array([g.x for g in found]), np.array([g.y for g in found])
    cast(Any, copy).renew(X.reshape(-1, keeper.terms.dim), Y)
    keeper.replace(copy, [keeper.row("renew", time=now())], {})


def snapshot(keeper: Keeper) -> Path:
    """The state as a file of the service."""
    taken = Snapshot(
        service=keeper.id,
        epoch=keeper.epoch,
        sequence=keeper.tip.sequence,
        tick=keeper.tick,
        sealed="",
        state=encode(keeper.mode.state()),
    )
    return keeper.snapshots.put(replace(taken, sealed=_seal(keeper, taken)))


def _seal(keeper: Keeper, taken: Snapshot) -> str:
    """Of the state and of the moment: an old state must not pass for a newer one."""
    return keeper.marks.snapshot(replace(taken, sealed="").to_bytes())


def restore(keeper: Keeper, till: Till, data: bytes) -> list[Certificate]:
    """Go back to a snapshot that is newer than every deletion."""
    kept = Snapshot.from_bytes(data)
    with keeper.place.read() as connection:
        forgotten = journal.last_forgotten(connection)
        lost = [
            body["record"]
            for row, body in journal.walk(connection, kept.sequence)
            if row.op == "insert"
        ]
    if kept.service != keeper.id:
        raise SnapshotRefused(
            "this snapshot belongs to another service. Nothing has changed."
        )
    if kept.sequence < forgotten or kept.epoch != keeper.epoch:
        raise SnapshotRefused(
            f"this snapshot was taken at row {kept.sequence}; row {forgotten} of the"
            " journal forgot something that it still knows. Nothing has changed."
        )
    if not hmac.compare_digest(_seal(keeper, kept), kept.sealed):
        raise SnapshotRefused(
            "this snapshot is not one that the service took: it was changed."
            " Nothing has changed."
        )
    if kept.sequence > keeper.tip.sequence:
        raise SnapshotRefused(
            "this snapshot is newer than the journal: one of the two comes from"
            " another copy. Nothing has changed."
        )
    mode = keeper.terms.model()
    mode.restore(decode(kept.state))
    gone = _certificates(keeper, till, lost, mode, "restore", keeper.epoch)
    with intents.replacing(keeper, till) as paid:
        bodies = [
            keeper.row(
                "restore", to=kept.sequence, drops=len(gone), time=now(), **paid
            ),
            *_drops(keeper, gone),
        ]
        issued = keeper.replace(mode, bodies, gone, tick=kept.tick)
    keeper.tidy()
    return list(issued.values())


def _drops(keeper: Keeper, gone: dict[str, Certificate]) -> list[Body]:
    return [keeper.row("drop", certificate=c.content()) for c in gone.values()]


def _certificates(
    keeper: Keeper,
    till: Till,
    lost: Sequence[str],
    after: Mode,
    theorem: str,
    epoch: int,
) -> dict[str, Certificate]:
    """Certificates for records that the new model never saw."""
    subjects = keeper.subjects(lost)
    earlier = keeper.requests(set(subjects.values()))
    # Many persons, few different numbers of requests.
    so_far = {n: till.tariff.epsilon_of_requests(n) for n in set(earlier.values())}
    before, after_sealed = keeper.sealed(keeper.mode), keeper.sealed(after)
    plain = after.digest() if after.exact or after.publishes == "state" else None
    time = now()
    return {
        mark: Certificate(
            version=VERSION,
            service=keeper.id,
            record=mark,
            generation=keeper.index[mark],
            subject=subjects[mark],
            requests=earlier[subjects[mark]],
            records=1,
            epoch=epoch,
            tick=keeper.tick,
            mode=keeper.terms.mode,
            theorem=theorem,
            statement=stamped(WITHOUT_NOISE[theorem], keeper.terms.testing),
            scope=keeper.terms.scope,
            accounting="none",
            not_covered=after.theorem.not_covered,
            shift_bound=0.0,
            sigma=0.0,
            epsilon=0.0,
            delta=keeper.terms.delta,
            epsilon_so_far=so_far[earlier[subjects[mark]]],
            digest_before=before,
            digest_after=after_sealed,
            state_digest=plain,
            operation="",
            ledger="",
            entry="",
            library=__version__,
            time=time,
        )
        for mark in lost
    }
