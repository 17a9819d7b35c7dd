"""The ledger: one durable ledger that every engine charges before noise is drawn.

The order is always: check, price, write the entry, and only then draw. `charge`
returns after the entry is durable; a crash later leaves it spent. Nothing is ever
refunded and there is no reset.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import recording, validate
from demur.core.adjacency import AnyUnit, LipschitzMap, Unit
from demur.core.declaration import Declaration, Mechanism
from demur.core.entropy import NoiseKey, OsEntropy, Source, source_name
from demur.core.entry import Entry
from demur.core.errors import (
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    LedgerMismatch,
    LedgerUnreachable,
    NoiseReuse,
    NotPrivate,
    OutcomeUnknown,
)
from demur.durable import chain, store
from demur.durable.chain import Tip, canonical, digest
from demur.durable.keys import Shelf, keys_folder
from demur.durable.postgres import Timeouts
from demur.ledger import amounts, rows
from demur.ledger.admission import Ways, pay, ways_to_pay
from demur.ledger.budget import Budget
from demur.ledger.filters import Filter
from demur.ledger.notes import checked
from demur.ledger.reader import LedgerReader
from demur.ledger.reservation import Draw, Reservation
from demur.ledger.terms import Terms

_OS = OsEntropy()
_LARGEST_RESERVATION = 2**40


class Ledger(LedgerReader):
    """A ledger of charges with a budget for each unit.

    In memory, for one process:

    >>> from demur.core.adjacency import AddOrRemoveOne
    >>> from demur.core.cost import Cost, Fixed
    >>> from demur.core.accounting.events import Gaussian
    >>> ledger = Ledger(Budget(epsilon=2.0, delta=1e-6), unit=AddOrRemoveOne())
    >>> count = Declaration(
    ...     "a noisy count", Cost((Fixed(AddOrRemoveOne(), Gaussian(4.0)),))
    ... )
    >>> entry = ledger.charge(count, label="visitors")
    >>> round(ledger.epsilon(), 3)
    1.061

    Durable, for many: `Ledger.open("ledger.db", dataset=..., budgets={unit: budget})`.
    """

    def __init__(
        self,
        budget: Budget | Mapping[AnyUnit, Budget],
        unit: Unit | None = None,
        *,
        filter: Filter | str | None = None,
        dataset: str = "in memory",
        maps: Iterable[LipschitzMap] = (),
    ) -> None:
        """A ledger in memory; see `open` for one that lasts."""
        if isinstance(budget, Budget):
            if unit is None:
                raise TypeError(
                    "unit must say what the budget protects, as in"
                    " Ledger(budget, unit=AddOrRemoveOne())"
                )
            budgets: Mapping[Any, Budget] = {unit: budget}
        elif unit is not None:
            raise TypeError("give either one Budget and its unit, or {unit: Budget}")
        else:
            budgets = budget
        terms = Terms.make(dataset=dataset, budgets=budgets, filter=filter, maps=maps)
        self._attach(store.Store(None), terms, None, keys=None)

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        dataset: str | None = None,
        budgets: Mapping[AnyUnit, Budget] | None = None,
        filter: Filter | str | None = None,
        maps: Iterable[LipschitzMap] | None = None,
        tip: Tip | str | None = None,
        signing_key: Ed25519PrivateKey | Path | str | None = None,
        keys: str | os.PathLike[str] | None = None,
        testing: bool | None = None,
        timeouts: Timeouts | None = None,
    ) -> Ledger:
        """A durable ledger at a file path, `sqlite:///...` or `postgresql://...`.

        The first opening fixes dataset, budgets, filter, maps, signer and whether the
        ledger is for testing; later ones may leave them out, and are refused if they
        name others. `tip` is an exported tip: a ledger that does not contain it (one
        restored from an older backup) is refused. `keys` is the owner-only folder for
        noise keys of entries not yet committed (default: beside a file, or under the
        user's state folder for a server). `timeouts` say how long a server is waited
        for; see `OutcomeUnknown` for what a lost answer means.
        """
        place = store.Store(os.fspath(url), timeouts)
        signer = chain.load_signing_key(signing_key) if signing_key else None
        public = chain.public_hex(signer) if signer else None
        self = cls.__new__(cls)
        with ExitStack() as refused:  # A refusal leaves no connection open.
            refused.callback(place.close)
            first: Terms | None = None
            if not place.exists():
                if tip is not None or budgets is None:
                    raise LedgerMismatch(
                        f"there is no ledger at {store.shown_address(url)}. Nothing was"
                        " created. The first opening makes one: Ledger.open(place,"
                        " dataset=..., budgets={unit: Budget(...)}), without tip="
                    )
                first = Terms.make(
                    dataset="" if dataset is None else dataset,
                    budgets=budgets,
                    filter=filter,
                    maps=maps or (),
                    signer=public,
                    testing=bool(testing),
                )
            self._attach(place, first, signer, keys=Path(keys) if keys else None)
            self._check_asked(dataset, budgets, filter, maps, testing, public)
            if tip is not None:
                self._contains(Tip.parse(tip) if isinstance(tip, str) else tip)
            refused.pop_all()
        return self

    def _attach(
        self,
        place: store.Store,
        terms: Terms | None,
        signer: Ed25519PrivateKey | None,
        keys: Path | None,
    ) -> None:
        self._store = place
        self._signer = signer
        if terms is not None:
            text = terms.to_text()
            place.prepare(text, secrets.token_hex(16), digest(text), len(terms.budgets))
        place.migrate()
        with place.read() as connection:
            row = connection.execute(sa.select(store.ledger)).one()
        self.terms = Terms.from_text(row.terms)
        self.id: str = row.ledger_id
        folder = keys or place.folder
        if folder is None and place.durable:
            folder = keys_folder() / self.id
        self._shelf = Shelf(folder if place.durable else None)
        self._out: dict[str, WeakSet[NoiseKey]] = {}

    def _check_asked(
        self,
        dataset: str | None,
        budgets: Mapping[AnyUnit, Budget] | None,
        filter: Filter | str | None,
        maps: Iterable[LipschitzMap] | None,
        testing: bool | None,
        signer: str | None,
    ) -> None:
        """Refuse what was asked for and is not so; what was left out is as it is."""
        kept = self.terms
        known: Mapping[Any, Budget] = dict(kept.budgets)
        kept.must_equal(
            Terms.make(
                dataset=kept.dataset if dataset is None else dataset,
                budgets=known if budgets is None else budgets,
                filter=kept.filter if filter is None else filter,
                maps=kept.maps if maps is None else maps,
                signer=kept.signer,
                testing=kept.testing if testing is None else testing,
            )
        )
        if signer is not None and kept.signer != signer:
            raise LedgerMismatch(
                f"this ledger is signed by {kept.signer or 'nobody'}; the key given"
                f" belongs to {signer}. Nothing was spent."
            )

    # -- writing ---------------------------------------------------------------

    def charge(
        self,
        mechanism: Mechanism,
        *,
        label: str,
        input_digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source = _OS,
        block_delta: float | None = None,
    ) -> Entry:
        """Write one charge, durably, or decline; then, and only then, draw noise.

        `input_digest` binds the entry to the data it is for (it is kept under a secret
        key, so that nobody can test guesses against the ledger). The same
        `idempotency_key` with the same mechanism and input is the same entry, charged
        once. `block_delta` is the delta a block is priced at, where the filter knows
        no better price for the event.

        A server that is lost is asked again within `Timeouts.call`, and pays once. Then
        `LedgerUnreachable` says that nothing was spent; `OutcomeUnknown` that it may
        have been: repeat the call with the same idempotency key.
        """
        return self._write_charge(
            mechanism, 1, label, input_digest, idempotency_key, source, block_delta
        )

    def reserve(
        self,
        mechanism: Mechanism,
        *,
        count: int,
        label: str,
        input_digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source = _OS,
        block_delta: float | None = None,
    ) -> Reservation:
        """Pay for `count` runs at once; `draw()` hands them out and stops at `count`.

        With an idempotency key a restarted job finds its reservation again, with the
        draws already made still counted.
        """
        validate.count(count=count)
        if count > _LARGEST_RESERVATION:
            raise ValueError(f"count must be at most 2^40; got {count}")
        entry = self._write_charge(
            mechanism,
            int(count),
            label,
            input_digest,
            idempotency_key,
            source,
            block_delta,
        )
        return Reservation(entry, self._draw_many, self._drawn)

    def _write_charge(
        self,
        mechanism: Mechanism,
        count: int,
        label: str,
        input_digest: str | None,
        idempotency_key: str | None,
        source: Source,
        block_delta: float | None,
    ) -> Entry:
        validate.name(label=label)
        if idempotency_key is not None:
            validate.name(idempotency_key=idempotency_key)
        if input_digest is not None:
            validate.name(input_digest=input_digest)
        if not source.private and self.durable and not self.terms.testing:
            raise NotPrivate(
                "a seeded noise source is for tests, and this ledger is durable: use OS"
                " entropy, or open a ledger with testing=True. Nothing was spent."
            )
        declaration = mechanism.declaration()
        if not isinstance(declaration, Declaration):
            raise TypeError(
                "mechanism must return a Declaration; got"
                f" {type(declaration).__name__}. Nothing was spent."
            )
        asked = recording.asked(declaration, count, label, private=source.private)
        text = canonical(declaration.to_json())
        # Prices first: they may take a second, and the lock is short.
        ways = ways_to_pay(self.terms, declaration, count, block_delta)
        curves = rows.profiles_of(declaration, count)
        key, entry_id = source.new_key(), secrets.token_hex(16)
        salt = _salt(entry_id, idempotency_key)
        bound = self._shelf.keyed_digest(input_digest, salt) if input_digest else None
        keep = bound is not None and idempotency_key is not None
        body: rows.Body = {
            "kind": "charge",
            "id": entry_id,
            "key": digest(key),
            "label": label,
            "declaration": digest(text),
            "count": count,
            "noise": source_name(source),
            "input": bound,
            "idempotency_key": idempotency_key,
        }
        # The key is on the shelf before the entry is durable: a task killed right after
        # its charge can still be repeated.
        self._shelf.put(entry_id, key, keep=keep)
        try:
            entry = self._ledger_charge(label, body, text, declaration, ways, curves)
        except (BudgetExceeded, IdempotencyConflict, LedgerMismatch, LedgerUnreachable):
            self._shelf.wipe(entry_id)
            raise
        except OutcomeUnknown:
            # A repeat may find this entry, and draws with its key. Without an
            # idempotency key nobody can ask for it: it is spent and never drawn.
            if idempotency_key is None:
                self._shelf.wipe(entry_id)
            raise
        if entry.id != entry_id:  # an idempotent repeat: that entry has its own key
            self._shelf.wipe(entry_id)
        elif asked is not None:
            asked.paid = True
        return entry

    def _ledger_charge(
        self,
        label: str,
        body: rows.Body,
        text: str,
        declaration: Declaration,
        ways: Ways,
        curves: dict[str, rows.KeptProfile],
    ) -> Entry:
        """The transaction: find a repeat, or pay and append; durable on return."""

        def work(connection: Connection, again: bool) -> Entry:
            sequence, last, stored = store.lock_ledger(connection)
            found = self._same_charge(connection, body, again)
            if found is not None:
                return found
            totals = [amounts.from_text(text) for text in stored]
            spent = pay(self.terms, label, ways, totals)
            row = body | {
                "time": rows.now(),
                "spent": [None if s is None else amounts.to_data(s) for s in spent],
                "profiles": rows.keep(connection, text, curves),
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
        found = None if key is None else rows.charge_by_key(connection, key)
        if found is None and again:
            found = rows.charge_by_id(connection, body["id"])
        if found is None:
            return None
        sequence, before = found
        for name in ("declaration", "count", "input", "noise"):
            if before[name] != body[name]:
                raise IdempotencyConflict(
                    f"idempotency_key {key!r} was used for {before['label']!r} with"
                    f" another {'mechanism' if name == 'declaration' else name}: use"
                    " a new key for a new charge. Nothing was spent."
                )
        declared = rows.declaration(connection, before["declaration"])
        return self._entry(sequence, before, declared)

    def _append(
        self, connection: Connection, sequence: int, last: str, body: rows.Body
    ) -> None:
        if self._signer is None and self.terms.signer is not None:
            raise LedgerMismatch(
                "this ledger is signed: open it with its signing_key to write."
                " Nothing was spent."
            )
        rows.append(connection, sequence, last, body, self._signer)

    def commit(self, entry: Entry, artefact_digest: str) -> None:
        """Bind the entry to what was released, and wipe its noise key."""
        validate.name(artefact_digest=artefact_digest)

        def work(connection: Connection, again: bool) -> None:
            sequence, last, _ = store.lock_ledger(connection)
            self._charge_row(connection, entry)
            before = rows.body_of(connection, entry.id, "commit")
            done = before["artefact"] if before else None
            if done is not None and done != artefact_digest:
                raise DemurError(
                    f"{entry.label!r} was committed with another artefact"
                    f" ({done[:12]}...): one entry pays for one release."
                )
            if done is None:
                body = {
                    "kind": "commit",
                    "id": entry.id,
                    "artefact": artefact_digest,
                    "time": rows.now(),
                }
                self._append(connection, sequence, last, body)

        self._store.persist(work)
        self._shelf.wipe(entry.id)
        for noise in self._out.pop(entry.id, ()):
            noise.wipe()

    def key(self, entry: Entry, input_digest: str | None = None) -> NoiseKey:
        """The noise key of an entry: once, or again for the identical input alone.

        The key of an entry without idempotency key and input digest is handed out once,
        to the process that charged. With both it may be asked for again with the same
        digest (a retried task) until the entry is committed.
        """
        with self._store.read() as connection:
            body = self._charge_row(connection, entry)
            committed = rows.body_of(connection, entry.id, "commit") is not None
        if committed:
            # The process died, or lost the answer, between its commit and the wipe.
            self._shelf.wipe(entry.id)
            raise NoiseReuse(
                f"{entry.label!r} is committed and its key is wiped: its noise"
                " cannot be drawn again. Charge a new entry."
            )
        bound = body["input"] is not None
        salt = _salt(entry.id, body["idempotency_key"])
        if bound and (
            input_digest is None
            or self._shelf.keyed_digest(input_digest, salt) != body["input"]
        ):
            raise NoiseReuse(
                f"{entry.label!r} is bound to another input: the same noise on two"
                " inputs would reveal their difference. Charge a new entry."
            )
        keep = bound and body["idempotency_key"] is not None
        key = self._shelf.take(entry.id, keep=keep)
        if key is None or digest(key) != body["key"]:
            raise NoiseReuse(
                f"the key of {entry.label!r} is not here: it was handed out already, or"
                " made by another process or machine. Another key would be a second"
                " draw for one charge. Charge a new entry; to be able to retry, charge"
                " with an idempotency_key and an input_digest."
            )
        noise = NoiseKey(key, private=entry.private)
        self._out.setdefault(entry.id, WeakSet()).add(noise)
        return noise

    def _drawn(self, entry: Entry) -> int:
        with self._store.read() as connection:
            return rows.draws(connection, entry.id)

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]:
        token = secrets.token_hex(16)

        def work(connection: Connection, again: bool) -> int:
            sequence, last, _ = store.lock_ledger(connection)
            paid = self._charge_row(connection, entry)["count"]
            if again:
                before = rows.with_token(connection, entry.id, token)
                if before is not None:
                    return int(before["index"])
            index = rows.draws(connection, entry.id)
            if index + count > paid:
                left = "all are used" if index == paid else f"{paid - index} are left"
                raise BudgetExceeded(
                    f"{entry.label!r} reserved {paid} draws and {left}."
                    " Declined: nothing was released. Reserve more in a new entry."
                )
            body = {
                "kind": "draw",
                "id": entry.id,
                "index": index,
                "count": count,
                "token": token,
                "time": rows.now(),
            }
            self._append(connection, sequence, last, body)
            return index

        first = self._store.persist(work)
        return tuple(Draw(entry, first + i) for i in range(count))

    def annotate(self, entry: Entry, about: str, facts: Mapping[str, Any]) -> None:
        """Note facts about an entry, such as an audit or a utility; free of charge.

        The facts become part of the chain and are never removed. They must be safe to
        publish: computed from releases and public data alone.
        """
        about, plain = checked(about, facts)
        token = secrets.token_hex(16)

        def work(connection: Connection, again: bool) -> None:
            sequence, last, _ = store.lock_ledger(connection)
            self._charge_row(connection, entry)
            if again and rows.with_token(connection, entry.id, token):
                return
            body = {
                "kind": "note",
                "id": entry.id,
                "about": about,
                "facts": plain,
                "token": token,
                "time": rows.now(),
            }
            self._append(connection, sequence, last, body)

        self._store.persist(work)

    def close(self) -> None:
        """Close the ledger's connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, _: object) -> Ledger:
        # A copied ledger would be a second budget: copies are the same ledger.
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Ledger cannot be pickled: a copy of a ledger would be a second budget."
            " Pass its address and open it there."
        )

    def __repr__(self) -> str:
        kind = "durable" if self.durable else "in memory"
        return f"<Ledger {self.terms.dataset!r}, {kind}>"


def _salt(entry_id: str, idempotency_key: str | None) -> str:
    """What tells one entry's input digest from another's: the same for its repeats."""
    return f"entry {entry_id}" if idempotency_key is None else f"key {idempotency_key}"
