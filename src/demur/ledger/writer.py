"""The writing half of a ledger: charges, draws, commits and notes.

The order is always: check, price, write the entry, and only then draw. A charge returns
after its entry is durable; a crash later leaves it spent. Nothing is ever refunded and
there is no reset. Engines use `paid` alone (see `demur.ledger.payment`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import validate
from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.digest import digest_of_text
from demur.core.entropy import Binding, NoiseKey, OsEntropy, Source, source_name
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
from demur.ledger import amounts, rows, tables
from demur.ledger.admission import PaymentOptions, pay, ways_to_pay
from demur.ledger.notes import checked
from demur.ledger.payment import Payment
from demur.ledger.reader import LedgerReader
from demur.ledger.reservation import Draw, Reservation

_LARGEST_RESERVATION = 2**40


class LedgerWriter(LedgerReader):
    """The writing half of `Ledger`."""

    _signer: Ed25519PrivateKey | None
    _keys: KeyStore
    _unwritable: tuple[type[DemurError], str] | None  # why nothing may be appended

    def paid(
        self,
        mechanism: Mechanism,
        *,
        label: str,
        digest: str | None = None,
        count: int = 1,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Payment:
        """The payment for a mechanism, charged durably, with the key of its noise.

        Use it as a context: the end of the block commits the entry, an exception leaves
        it spent (`demur.ledger.payment`). A charge that does not fit is declined with
        `BudgetExceeded`.

        - `digest` binds the entry to its input, as `mechanism.digest(value)` gives it.
          It is stored under a secret key, so that nobody can test guesses against the
          ledger.
        - `count` pays for that many runs at once (`payment.reservation`).
        - The same `idempotency_key` with the same mechanism and input is the same
          entry, charged once: a restarted job finds it again.
        - `source` is the entropy of the noise: the operating system, or, in tests, a
          `Seeded` source.
        - `block_delta` is the delta that a block is priced at, where the filter has no
          better price for the event.

        If the server is lost, the charge is repeated within `Timeouts.call`, and pays
        once. After that, `LedgerUnreachable` means that nothing was spent and
        `OutcomeUnknown` that it may have been: repeat the call with the same
        idempotency key.

        >>> from demur import AddOrRemoveOne, Budget, Ledger
        >>> from demur.mechanisms import Gaussian
        >>> ledger = Ledger(Budget(epsilon=2.0, delta=1e-6), unit=AddOrRemoveOne())
        >>> count = Gaussian(4.0, {AddOrRemoveOne(): 1.0})
        >>> with ledger.paid(count, label="visitors") as payment:
        ...     noisy = count.apply([1234.0], payment.key)
        >>> round(ledger.epsilon(), 3)
        1.061
        """
        validate.count(count=count)
        if count > _LARGEST_RESERVATION:
            raise ValueError(f"count must be at most 2^40; got {count}")
        entry = self._charge(
            mechanism,
            int(count),
            label,
            digest,
            idempotency_key,
            OsEntropy() if source is None else source,
            block_delta,
        )
        return Payment(self, entry, digest)

    def charge(
        self,
        mechanism: Mechanism,
        *,
        label: str,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Entry:
        """The entry of a release whose noise another program draws.

        It is `paid` without the key, with the same arguments.
        """
        return self.paid(
            mechanism,
            label=label,
            digest=digest,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        ).entry

    def reserve(
        self,
        mechanism: Mechanism,
        *,
        count: int,
        label: str,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Reservation:
        """A reservation of `count` runs; `draw()` hands them out and stops at `count`.

        With an idempotency key a restarted job finds its reservation again, and the
        draws already made still count. The noise of the runs is drawn by another
        program, as with `charge`; `paid(..., count=...)` has a key as well.
        """
        return self.paid(
            mechanism,
            label=label,
            digest=digest,
            count=count,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        ).reservation

    def resumed(self, idempotency_key: str) -> Payment | None:
        """The payment of an earlier call with this key, to commit what it released.

        For a process that died after its release was durable elsewhere and before the
        commit. None means that there is no such entry, and that no call under way will
        write one.
        """
        entry = self.find(idempotency_key, settled=True)
        return None if entry is None else Payment(self, entry, None)

    # -- the steps of a payment --------------------------------------------------

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
        }
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

        def work(connection: Connection, again: bool) -> Entry:
            sequence, last, stored_totals = tables.lock_ledger(connection)
            earlier = self._same_charge(connection, body, again)
            if earlier is not None:
                return earlier
            totals = [amounts.from_text(stored) for stored in stored_totals]
            spent = pay(self.terms, label, ways, totals)
            row = body | {
                "time": clock.now(),
                "spent": [None if s is None else amounts.to_data(s) for s in spent],
                "profiles": rows.store_shared(connection, text, curves),
            }
            self._append(connection, sequence, last, row)
            for position, total in enumerate(totals):
                rows.set_totals(connection, position, amounts.to_text(total))
            return self._entry(sequence + 1, row, declaration)

        return self._store.persist(work)

    def _same_charge(
        self, connection: Connection, body: rows.Body, again: bool
    ) -> Entry | None:
        """The entry that this idempotency key made, if it was for the same thing.

        `again`: or the one of this very call, whose answer was lost.
        """
        key = body["idempotency_key"]
        earlier = None if key is None else rows.charge_by_key(connection, key)
        if earlier is None and again:
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
        declaration = rows.declaration(connection, before["declaration"])
        return self._entry(sequence, before, declaration)

    def _append(
        self, connection: Connection, sequence: int, last: str, body: rows.Body
    ) -> None:
        if self._unwritable is not None:
            error, text = self._unwritable
            raise error(text)
        rows.append(connection, sequence, last, body, self._signer)

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
        if artefact is not None:
            validate.name(artefact=artefact)

        def work(connection: Connection, again: bool) -> None:
            sequence, last, _ = tables.lock_ledger(connection)
            self._charge_row(connection, entry)
            before = rows.body_of(connection, entry.id, "commit")
            if before is None:
                body = {
                    "kind": "commit",
                    "id": entry.id,
                    "artefact": artefact,
                    "time": clock.now(),
                }
                self._append(connection, sequence, last, body)
            elif before["artefact"] != artefact:
                raise DemurError(
                    f"{entry.label!r} was committed with another artefact"
                    f" ({str(before['artefact'])[:12]}...), and one entry pays for one"
                    " release: pay for the other one. Nothing more was spent."
                )

        self._store.persist(work)
        self._keys.wipe(entry.id)

    def _drawn(self, entry: Entry) -> int:
        with self._store.read() as connection:
            return rows.draws(connection, entry.id)

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]:
        token = secrets.token_hex(16)

        def work(connection: Connection, again: bool) -> int:
            sequence, last, _ = tables.lock_ledger(connection)
            paid = self._charge_row(connection, entry)["count"]
            if again:
                before = rows.with_token(connection, entry.id, token)
                if before is not None:
                    return int(before["index"])
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
            self._append(connection, sequence, last, body)
            return index

        first = self._store.persist(work)
        return tuple(Draw(entry, first + i) for i in range(count))

    # -- notes -------------------------------------------------------------------

    def annotate(self, entry: Entry, about: str, facts: Mapping[str, Any]) -> None:
        """Add facts about an entry to the chain, such as an audit or a utility.

        They cost nothing and are never removed. They must be safe to publish: computed
        from releases and public data alone.
        """
        about, plain = checked(about, facts)
        token = secrets.token_hex(16)

        def work(connection: Connection, again: bool) -> None:
            sequence, last, _ = tables.lock_ledger(connection)
            self._charge_row(connection, entry)
            if again and rows.with_token(connection, entry.id, token):
                return
            body = {
                "kind": "note",
                "id": entry.id,
                "about": about,
                "facts": plain,
                "token": token,
                "time": clock.now(),
            }
            self._append(connection, sequence, last, body)

        self._store.persist(work)


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
