"""The steps of a payment: charge, key, draw and commit, each in one transaction.

The order is always: check, price, write the entry, and only then draw. A charge returns
after its entry is durable; a crash later leaves it spent. Nothing is ever refunded and
there is no reset. A charge that does not fit is written down as declined: what was
asked, by whom, at what cost and why not; it costs nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import validate
from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.digest import digest_of_text
from demur.core.entropy import Binding, NoiseKey, Source, source_name
from demur.core.entry import Entry
from demur.core.errors import (
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    NoiseReuse,
    NotPrivate,
    OutcomeUnknown,
)
from demur.core.recording import record_charge
from demur.durable import clock
from demur.durable.chain import canonical
from demur.durable.keys import KeyStore
from demur.ledger.reader import LedgerReader
from demur.ledger.reservation import Draw
from demur.ledger.rules import amounts
from demur.ledger.rules.admission import PaymentOptions, pay, ways_to_pay
from demur.ledger.storage import rows
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.receipts import Receipt
from demur.ledger.storage.writing import Writing

_T = TypeVar("_T")

# Of so many rows at the end, so many may be declined requests: a flood is not recorded.
_RECENT, _MOST_DECLINED = 1000, 100


class LedgerCharging(LedgerReader):
    """The steps of a payment, for `Payment` and `LedgerWriter`."""

    _signer: Ed25519PrivateKey | None
    _keys: KeyStore
    _keys_folder: Path | None  # where they are on disk
    _actor: str  # who writes
    _unsafe: tuple[str, ...]  # settings of the server that can lose a commit
    _acknowledged: Acknowledged
    _unwritable: tuple[type[DemurError], str] | None  # why nothing may be appended

    def _charge(
        self,
        mechanism: Mechanism,
        count: int,
        label: str,
        digest: str | None,
        idempotency_key: str | None,
        source: Source,
        block_delta: float | None,
    ) -> Entry:
        self._check_writable()
        validate.name(label=label)
        if idempotency_key is not None:
            validate.name(idempotency_key=idempotency_key)
        if digest is not None:
            validate.name(digest=digest)
        if not callable(getattr(source, "new_key", None)):
            raise TypeError(
                "source must be None, OsEntropy() or Seeded(seed); got"
                f" {validate.shorten(source)}. Nothing was spent."
            )
        if not source.private and self.durable and not self.terms.testing:
            raise NotPrivate(
                "a seeded noise source is for tests, and this ledger is durable: use OS"
                " entropy, or open a ledger with testing=True. Nothing was spent."
            )
        declaration = declaration_of(mechanism)
        asked = record_charge(declaration, count, label, private=source.private)
        text = canonical(declaration.to_json())
        # Prices first: they may take a second, and the lock is short.
        ways = ways_to_pay(self.terms, declaration, count, block_delta)
        curves = rows.profiles_of(declaration, count)
        key, entry_id = source.new_key(), secrets.token_hex(16)
        salt = _salt(entry_id, idempotency_key)
        keyed = None if digest is None else self._keys.keyed_digest(digest, salt)
        body: rows.Body = {
            "kind": "charge",
            "id": entry_id,
            "key": digest_of_text(key),
            "label": label,
            "declaration": digest_of_text(text),
            "count": count,
            "noise": source_name(source),
            "input": keyed,
            "idempotency_key": idempotency_key,
            "block_delta": block_delta,
            "actor": self._actor,
        }
        if self._unsafe:
            body["unsafe"] = list(self._unsafe)
        # The key is stored before the entry is durable: a task killed right after its
        # charge can still be repeated.
        self._keys.put(entry_id, key, keep=_repeatable(body, declaration))
        try:
            entry = self._write_charge(label, body, text, declaration, ways, curves)
        except BaseException as error:
            # After a lost answer or an interrupt the entry may be there. A repeat finds
            # it by its idempotency key and draws with its noise key; without one it is
            # never drawn for.
            in_doubt = isinstance(error, OutcomeUnknown) or not isinstance(
                error, Exception
            )
            if not in_doubt or idempotency_key is None:
                self._keys.wipe(entry_id)
            raise
        if entry.id != entry_id:  # an idempotent repeat: that entry has its own key
            self._keys.wipe(entry_id)
        elif asked is not None:
            asked.paid = True
        return entry

    def _write_charge(
        self,
        label: str,
        body: rows.Body,
        text: str,
        declaration: Declaration,
        ways: PaymentOptions,
        curves: dict[str, rows.StoredProfile],
    ) -> Entry:
        """The transaction: find a repeat, or pay and append; durable on return."""

        def work(writing: Writing) -> Entry | BudgetExceeded:
            earlier = self._same_charge(writing, body)
            if earlier is not None:
                return earlier
            totals = amounts.from_text(writing.state.totals)
            try:
                spent = pay(self.terms, label, ways, totals)
            except BudgetExceeded as declined:
                self._write_declined(writing, body, text, ways, declined)
                return declined
            row = body | {
                "time": clock.now(),
                "spent": [None if s is None else amounts.to_data(s) for s in spent],
                "profiles": rows.store_shared(writing.connection, text, curves),
            }
            sequence = writing.append(row, amounts.to_text(totals), text)
            return self._entry(sequence, row, declaration)

        result = self._persist(work)
        if isinstance(result, BudgetExceeded):
            raise result
        return result

    def _write_declined(
        self,
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
        if rows.declined_since(connection, recent) >= _MOST_DECLINED:
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

    def _same_charge(self, writing: Writing, body: rows.Body) -> Entry | None:
        """The entry that this idempotency key made, if it was for the same thing.

        Or the one of this very call, whose answer was lost.
        """
        connection, key = writing.connection, body["idempotency_key"]
        earlier = None if key is None else rows.charge_by_key(connection, key)
        if earlier is None and writing.again:
            earlier = rows.charge_by_id(connection, body["id"])
        if earlier is None:
            return None
        sequence, before = earlier
        for name in ("declaration", "count", "input", "noise"):
            if before[name] != body[name]:
                raise IdempotencyConflict(
                    f"idempotency_key {key!r} was used for {before['label']!r} with"
                    f" another {'mechanism' if name == 'declaration' else name}: use"
                    " a new key for a new charge. Nothing was spent."
                )
        writing.found(sequence)
        declaration = rows.declaration(connection, before["declaration"])
        return self._entry(sequence, before, declaration)

    def _persist(
        self, work: Callable[[Writing], _T], *, whatever_was_lost: bool = False
    ) -> _T:
        """Run `work` under the lock until it is durable, and keep its receipts.

        A ledger that lacks a row which it acknowledged is not written to, unless
        `whatever_was_lost`.
        """

        def attempt(connection: Connection, again: bool) -> tuple[_T, list[Receipt]]:
            writing = Writing(connection, again, self.id, self._signer)
            if not whatever_was_lost:
                self._acknowledged.check(writing)
            return work(writing), writing.receipts

        result, receipts = self._store.persist(attempt)
        if self.durable:
            self._acknowledged.keep(receipts)
        return result

    def find(self, idempotency_key: str, *, settled: bool = False) -> Entry | None:
        """The charge that was made with this idempotency key, if there is one.

        `settled` takes the ledger's lock first: a charge whose answer was lost is there
        by then, or never will be. Without it, the look may come before the commit.
        """
        if settled:
            return self._persist(
                lambda writing: self._found(writing.connection, idempotency_key)
            )
        with self._store.read() as connection:
            return self._found(connection, idempotency_key)

    def _check_writable(self) -> None:
        if self._unwritable is not None:
            error, text = self._unwritable
            raise error(text)

    def _key(self, entry: Entry, digest: str | None) -> NoiseKey:
        """The noise key of an entry: once, or again for the identical input alone.

        What it is bound to comes from the ledger's rows, not from `entry`.
        """
        with self._store.read() as connection:
            body = self._charge_row(connection, entry)
            committed = rows.body_of(connection, entry.id, "commit") is not None
            declaration = rows.declaration(connection, body["declaration"])
        if committed:
            # The process died, or lost the answer, between its commit and the wipe.
            self._keys.wipe(entry.id)
            raise NoiseReuse(
                f"{entry.label!r} is committed and its key is wiped: its noise"
                " cannot be drawn again. Charge a new entry."
            )
        salt = _salt(entry.id, body["idempotency_key"])
        if body["input"] is not None and (
            digest is None or self._keys.keyed_digest(digest, salt) != body["input"]
        ):
            given = "no digest" if digest is None else "the digest of another input"
            raise NoiseReuse(
                f"{entry.label!r} was charged for one input, and {given} was given: the"
                " same noise on another input would reveal their difference. Repeat the"
                " same call, or charge a new entry. Nothing was drawn."
            )
        binding = Binding(
            declaration.fingerprint, digest, declaration.draws, body["count"]
        )

        def bound(key: bytes | None) -> NoiseKey:
            if key is None or digest_of_text(key) != body["key"]:
                raise NoiseReuse(
                    f"the key of {entry.label!r} is not here: it was handed out"
                    " already, or made by another process or machine. Charge a new"
                    " entry; to be able to retry one run, charge it with an"
                    " idempotency_key and a digest."
                )
            return NoiseKey(key, private=body["noise"] == "os", binding=binding)

        keep = _repeatable(body, declaration)
        return self._keys.hand_out(entry.id, bound, keep=keep)

    def _abandon(self, entry: Entry) -> None:
        """Wipe the keys of a payment that failed; a repeat may ask for its own."""
        self._keys.withdraw(entry.id)

    def _commit(self, entry: Entry, artefact: str | None) -> None:
        """Bind the entry to what was released, and wipe its noise key."""
        self._check_writable()
        if artefact is not None:
            validate.name(artefact=artefact)

        def work(writing: Writing) -> None:
            self._charge_row(writing.connection, entry)
            committed = rows.row_of(writing.connection, entry.id, "commit")
            if committed is None:
                body = {
                    "kind": "commit",
                    "id": entry.id,
                    "artefact": artefact,
                    "time": clock.now(),
                }
                writing.append(body)
                return
            sequence, before = committed
            if before["artefact"] != artefact:
                raise DemurError(
                    f"{entry.label!r} was committed with another artefact"
                    f" ({str(before['artefact'])[:12]}...), and one entry pays for one"
                    " release: pay for the other one. Nothing more was spent."
                )
            writing.found(sequence)

        self._persist(work)
        self._keys.wipe(entry.id)

    def _drawn(self, entry: Entry) -> int:
        with self._store.read() as connection:
            return rows.draws(connection, entry.id)

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]:
        self._check_writable()
        token = secrets.token_hex(16)

        def work(writing: Writing) -> int:
            connection = writing.connection
            paid = self._charge_row(connection, entry)["count"]
            if writing.again:
                before = rows.with_token(connection, entry.id, token)
                if before is not None:
                    sequence, body = before
                    writing.found(sequence)
                    return int(body["index"])
            index = rows.draws(connection, entry.id)
            if index + count > paid:
                left = "all are used" if index == paid else f"{paid - index} are left"
                raise BudgetExceeded(
                    f"{entry.label!r} reserved {paid} draws and {left}; asked for"
                    f" {count}. Reserve more in a new entry. Declined: nothing was"
                    " released and nothing was spent."
                )
            body = {
                "kind": "draw",
                "id": entry.id,
                "index": index,
                "count": count,
                "token": token,
                "time": clock.now(),
            }
            writing.append(body)
            return index

        first = self._persist(work)
        return tuple(Draw(entry, first + i) for i in range(count))


def _repeatable(body: rows.Body, declaration: Declaration) -> bool:
    """Whether a repeat may draw again: it has a name, and its input is compared.

    Several runs are several values, which the one digest of the entry does not name;
    a mechanism that counts its own draws is one run on one input.
    """
    named = body["input"] is not None and body["idempotency_key"] is not None
    return named and (body["count"] == 1 or declaration.draws is None)


def _salt(entry_id: str, idempotency_key: str | None) -> str:
    """The salt of an entry's input digest, the same for its repeats."""
    return f"entry {entry_id}" if idempotency_key is None else f"key {idempotency_key}"
