"""The ledger's side of every write: what is checked and entered under its lock.

`demur.ledger.charging` is the other side, that of the process which draws noise: it has
the keys. Nothing here knows a key, only its hash. So this side may be in another
process, behind HTTP (`demur.ledger.remote`), and everything that a charge must satisfy
is decided here, from the declaration: the price, the budget, the approval.

Every write has a name that its caller made before the first attempt: the entry's random
id, a token, an idempotency key. `again` says that an earlier attempt may have been
made, by this process or by another one for the same caller; what it wrote is then found
under the lock and not written twice (the proof is in `demur.durable.store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import validate
from demur.core.adjacency import Unit
from demur.core.declaration import Declaration
from demur.core.errors import BudgetExceeded, DemurError, IdempotencyConflict
from demur.durable import clock
from demur.durable.chain import Tip
from demur.ledger.approval.approvals import Approvals
from demur.ledger.approval.requests import Decision
from demur.ledger.notes import checked
from demur.ledger.reader import Recovery
from demur.ledger.recovery import recover
from demur.ledger.rules import amounts
from demur.ledger.rules.admission import PaymentOptions, pay, ways_to_pay
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.ledger_store import LedgerStore
from demur.ledger.storage.receipts import Receipt
from demur.ledger.storage.writing import Writing

_T = TypeVar("_T")
Row = tuple[int, rows.Body]  # a row's number and its text
Declared = tuple[int, rows.Body, Declaration]  # of a charge, with its declaration
Refusal = BudgetExceeded | DemurError

# Of so many rows at the end, so many may be declined requests: a flood is not recorded.
_RECENT, _MOST_DECLINED = 1000, 100


class Journal:
    """What is entered in a ledger at a file, on a server or in memory."""

    repeats = False  # whether every call may repeat one that was carried out

    def __init__(
        self,
        store: LedgerStore,
        terms: Terms,
        ledger_id: str,
        signer: Ed25519PrivateKey | None,
        acknowledged: Acknowledged,
    ) -> None:
        self._store, self._terms, self._id = store, terms, ledger_id
        self._signer, self._acknowledged = signer, acknowledged
        self._approvals = Approvals(terms)

    def charge(
        self,
        body: rows.Body,
        text: str,
        declaration: Declaration,
        *,
        purpose: str = "",
        again: bool = False,
    ) -> Row:
        """Pay for a charge and enter it; durable on return.

        `body` is all of the row that its caller knows; `text` is the declaration as it
        is stored. A charge that is there already is found and not paid again.
        """
        # Prices first: they may take a second, and the lock is short.
        ways = ways_to_pay(self._terms, declaration, body["count"], body["block_delta"])
        curves = rows.profiles_of(declaration, body["count"])
        waits = self._approvals.needed(body, declaration)

        def work(writing: Writing) -> Row | Refusal:
            earlier = _same_charge(writing, body, again)
            if earlier is not None:
                return earlier
            totals = amounts.from_text(writing.state.totals)
            try:
                spent = pay(self._terms, body["label"], ways, totals)
            except BudgetExceeded as declined:
                _write_declined(writing, body, text, ways, declined)
                return declined
            row = dict(body)
            if waits:
                request = self._approvals.look_up(writing, body, text, purpose)
                if isinstance(request, DemurError):
                    return request
                row["request"] = request
            row |= {
                "time": clock.now(),
                "spent": [None if s is None else amounts.to_data(s) for s in spent],
                "profiles": rows.store_shared(writing.connection, text, curves),
            }
            return writing.append(row, amounts.to_text(totals), text), row

        outcome = self.persist(work)
        if isinstance(outcome, DemurError):
            raise outcome
        return outcome

    def commit(self, entry_id: str, artefact: str | None) -> None:
        """Bind an entry to what was released."""
        if artefact is not None:
            validate.name(artefact=artefact)

        def work(writing: Writing) -> None:
            label = rows.charge_row(writing.connection, entry_id)["label"]
            committed = rows.row_of(writing.connection, entry_id, "commit")
            if committed is None:
                body = {
                    "kind": "commit",
                    "id": entry_id,
                    "artefact": artefact,
                    "time": clock.now(),
                }
                writing.append(body)
                return
            sequence, before = committed
            if before["artefact"] != artefact:
                raise DemurError(
                    f"{label!r} was committed with another artefact"
                    f" ({str(before['artefact'])[:12]}...), and one entry pays for one"
                    " release: pay for the other one. Nothing more was spent."
                )
            writing.found(sequence)

        self.persist(work)

    def draw(
        self, entry_id: str, count: int, token: str, *, again: bool = False
    ) -> int:
        """Hand out `count` runs of a reservation; the number of the first."""

        def work(writing: Writing) -> int:
            connection = writing.connection
            paid = rows.charge_row(connection, entry_id)
            if writing.again or again:
                before = rows.with_token(connection, entry_id, token)
                if before is not None:
                    sequence, body = before
                    writing.found(sequence)
                    return int(body["index"])
            index = rows.draws(connection, entry_id)
            if index + count > paid["count"]:
                left = paid["count"] - index
                words = f"{left} are left" if left else "all are used"
                raise BudgetExceeded(
                    f"{paid['label']!r} reserved {paid['count']} draws and {words};"
                    f" asked for {count}. Reserve more in a new entry. Declined:"
                    " nothing was released and nothing was spent."
                )
            body = {
                "kind": "draw",
                "id": entry_id,
                "index": index,
                "count": count,
                "token": token,
                "time": clock.now(),
            }
            writing.append(body)
            return index

        return self.persist(work)

    def note(
        self,
        entry_id: str,
        about: str,
        facts: Mapping[str, Any],
        token: str,
        actor: str,
        *,
        again: bool = False,
    ) -> None:
        """Add facts about an entry."""
        about, plain = checked(about, facts)

        def work(writing: Writing) -> None:
            rows.charge_row(writing.connection, entry_id)
            if writing.again or again:
                before = rows.with_token(writing.connection, entry_id, token)
                if before is not None:
                    writing.found(before[0])
                    return
            body = {
                "kind": "note",
                "id": entry_id,
                "about": about,
                "facts": plain,
                "token": token,
                "actor": actor,
                "time": clock.now(),
            }
            writing.append(body)

        self.persist(work)

    def decide(self, number: int, approved: bool, reason: str, actor: str) -> Decision:
        """Approve or decline the request with this number; a repeat finds its own."""
        validate.count(number=number)
        validate.text(reason=reason)
        return self.persist(
            lambda writing: self._approvals.decide(
                writing, number, approved, reason, actor
            )
        )

    def recover(
        self,
        actor: str,
        tip: Tip,
        receipts: Iterable[Receipt],
        write_down: Mapping[Unit, Budget] | str | None,
    ) -> Recovery:
        """Enter again what this ledger has lost, up to the last known tip."""
        return recover(
            self._terms,
            self._id,
            actor,
            lambda work: self.persist(work, whatever_was_lost=True),
            tip,
            receipts,
            write_down,
        )

    def persist(
        self, work: Callable[[Writing], _T], *, whatever_was_lost: bool = False
    ) -> _T:
        """Run `work` under the lock until it is durable, and keep its receipts.

        A ledger that lacks a row which it acknowledged is not written to, unless
        `whatever_was_lost`.
        """

        def attempt(connection: Connection, again: bool) -> tuple[_T, list[Receipt]]:
            again = again or self.repeats
            writing = Writing(connection, again, self._id, self._signer)
            if not whatever_was_lost:
                self._acknowledged.check(writing)
            return work(writing), writing.receipts

        result, receipts = self._store.persist(attempt)
        if self._store.durable:
            self._acknowledged.keep(receipts)
        return result

    # -- what is read to go on with a charge --------------------------------------

    def find(self, idempotency_key: str, *, settled: bool) -> Declared | None:
        """The charge under this key; `settled` waits for those under way."""

        def look(connection: Connection) -> Declared | None:
            row = rows.charge_by_key(connection, idempotency_key)
            if row is None:
                return None
            return *row, rows.declaration(connection, row[1]["declaration"])

        if settled:
            return self.persist(lambda writing: look(writing.connection))
        with self._store.read() as connection:
            return look(connection)

    def charged(self, entry_id: str) -> tuple[rows.Body, bool, Declaration]:
        """The row of a charge, whether it is committed, and its declaration."""
        with self._store.read() as connection:
            body = rows.charge_row(connection, entry_id)
            commit = rows.body_of(connection, entry_id, "commit")
            declaration = rows.declaration(connection, body["declaration"])
        return body, commit is not None, declaration

    def stored_declaration(self, digest: str) -> Declaration:
        """A declaration that a row names."""
        with self._store.read() as connection:
            return rows.declaration(connection, digest)

    def drawn(self, entry_id: str) -> int:
        """How many runs of a reservation were handed out."""
        with self._store.read() as connection:
            return rows.draws(connection, entry_id)


def _same_charge(writing: Writing, body: rows.Body, again: bool) -> Row | None:
    """The charge that this idempotency key made, if it was for the same thing.

    Or the one of this very call, whose answer was lost.
    """
    connection, key = writing.connection, body["idempotency_key"]
    compared = ["declaration", "count", "input", "noise"]
    earlier = None if key is None else rows.charge_by_key(connection, key)
    if earlier is None and (writing.again or again):
        earlier = rows.charge_by_id(connection, body["id"])
        compared += ["key", "idempotency_key"]
    if earlier is None:
        return None
    sequence, before = earlier
    for name in compared:
        if before[name] != body[name]:
            raise IdempotencyConflict(
                f"idempotency_key {key!r} was used for {before['label']!r} with"
                f" another {'mechanism' if name == 'declaration' else name}: use"
                " a new key for a new charge. Nothing was spent."
            )
    rows.declaration(connection, before["declaration"])  # or it was edited
    writing.found(sequence)
    return sequence, before


def _write_declined(
    writing: Writing,
    body: rows.Body,
    text: str,
    ways: PaymentOptions,
    declined: BudgetExceeded,
) -> None:
    """Write down what was asked and why not, unless many were just before it."""
    connection, recent = writing.connection, writing.state.sequence - _RECENT
    before = rows.row_of(connection, body["id"], "declined")
    if before is not None:  # by an attempt whose answer was lost
        writing.found(before[0])
        return
    if rows.many_since(connection, recent, "declined") >= _MOST_DECLINED:
        return
    row = {
        "kind": "declined",
        "id": body["id"],
        "label": body["label"],
        "declaration": body["declaration"],
        "count": body["count"],
        "cost": [None if way is None else amounts.to_data(way[0]) for way in ways],
        "why": str(declined),
        "actor": body["actor"],
        "time": clock.now(),
    }
    rows.store_shared(connection, text, {})
    writing.append(row)
