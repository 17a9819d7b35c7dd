"""The ledger: one durable book that every engine charges before noise is drawn.

The order is always: check, price, write the entry, and only then draw. `charge`
returns after the entry is durable; a crash later leaves it spent. Nothing is ever
refunded and there is no reset.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import recording, validate
from demur.core.adjacency import AnyUnit, Erasure, LipschitzMap, Unit
from demur.core.declaration import Declaration, Mechanism
from demur.core.entropy import NoiseKey, OsEntropy, Source, source_name
from demur.core.entry import Entry, Promise
from demur.core.errors import (
    BookDamaged,
    BookMismatch,
    BookUnreachable,
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    NoiseReuse,
    NotCovered,
    NotPrivate,
    OutcomeUnknown,
)
from demur.core.events import Repeated
from demur.ledger import amounts, chain, filters, journal, store
from demur.ledger.budget import Budget
from demur.ledger.chain import Head, canonical, digest
from demur.ledger.filters import Amounts, Filter
from demur.ledger.keys import Shelf
from demur.ledger.notes import Note, checked
from demur.ledger.reading import Reading, read
from demur.ledger.reservation import Draw, Reservation
from demur.ledger.server import Timeouts
from demur.ledger.terms import Terms
from demur.ledger.verification import Verification, verify_rows

_OS = OsEntropy()
_LARGEST_RESERVATION = 2**40


@dataclass(frozen=True)
class BudgetStatus:
    """One budget of a book and what is left of it."""

    unit: Unit
    budget: Budget
    spent_epsilon: float
    accounts: Mapping[str, str]


class Ledger:
    """A book of charges with a budget for each unit.

    In memory, for one process:

    >>> from demur.core.adjacency import AddOrRemoveOne
    >>> from demur.core.cost import Cost, Fixed
    >>> from demur.core.events import Gaussian
    >>> ledger = Ledger(Budget(epsilon=2.0, delta=1e-6), unit=AddOrRemoveOne())
    >>> count = Declaration(
    ...     "a noisy count", Cost((Fixed(AddOrRemoveOne(), Gaussian(4.0)),))
    ... )
    >>> entry = ledger.charge(count, label="visitors")
    >>> round(ledger.epsilon(), 3)
    1.061

    Durable, for many: `Ledger.open("book.db", dataset=..., budgets={unit: budget})`.
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
        """A book in memory; see `open` for one that lasts."""
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
        head: Head | str | None = None,
        signing_key: Ed25519PrivateKey | Path | str | None = None,
        keys: str | os.PathLike[str] | None = None,
        testing: bool | None = None,
        timeouts: Timeouts | None = None,
    ) -> Ledger:
        """A durable book at a file path, `sqlite:///...` or `postgresql://...`.

        The first opening fixes dataset, budgets, filter, maps, signer and whether the
        book is for testing; later ones may leave them out, and are refused if they
        name others. `head` is an exported head: a book that does not contain it (one
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
                if head is not None or budgets is None:
                    raise BookMismatch(
                        f"there is no book at {_shown(url)}. Nothing was created. The"
                        " first opening makes one: Ledger.open(place, dataset=...,"
                        " budgets={unit: Budget(...)}), without head="
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
            if head is not None:
                self._contains(Head.parse(head) if isinstance(head, str) else head)
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
            row = connection.execute(sa.select(store.book)).one()
        self.terms = Terms.from_text(row.terms)
        self.id: str = row.book_id
        folder = keys or place.folder
        if folder is None and place.durable:
            folder = _state_folder() / self.id
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
            raise BookMismatch(
                f"this book is signed by {kept.signer or 'nobody'}; the key given"
                f" belongs to {signer}. Nothing was spent."
            )

    # -- writing ---------------------------------------------------------------

    @property
    def durable(self) -> bool:
        """Whether the book outlives this process."""
        return self._store.durable

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
        key, so that nobody can test guesses against the book). The same
        `idempotency_key` with the same mechanism and input is the same entry, charged
        once. `block_delta` is the delta a block is priced at, where the filter knows
        no better price for the event.

        A server that is lost is asked again within `Timeouts.call`, and pays once. Then
        `BookUnreachable` says that nothing was spent; `OutcomeUnknown` that it may have
        been: repeat the call with the same idempotency key.
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
                "a seeded noise source is for tests, and this book is durable: use OS"
                " entropy, or open a book with testing=True. Nothing was spent."
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
        ways = self._ways(declaration, count, block_delta)
        curves = journal.profiles_of(declaration, count)
        key, entry_id = source.new_key(), secrets.token_hex(16)
        salt = _salt(entry_id, idempotency_key)
        bound = self._shelf.keyed_digest(input_digest, salt) if input_digest else None
        keep = bound is not None and idempotency_key is not None
        body: journal.Body = {
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
            entry = self._book_charge(label, body, text, declaration, ways, curves)
        except (BudgetExceeded, IdempotencyConflict, BookMismatch, BookUnreachable):
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

    def _book_charge(
        self,
        label: str,
        body: journal.Body,
        text: str,
        declaration: Declaration,
        ways: list[list[Amounts] | None],
        curves: dict[str, journal.KeptProfile],
    ) -> Entry:
        """The transaction: find a repeat, or pay and append; durable on return."""

        def work(connection: Connection, again: bool) -> Entry:
            sequence, last, stored = store.lock_book(connection)
            found = self._same_charge(connection, body, again)
            if found is not None:
                return found
            totals = [amounts.from_text(text) for text in stored]
            spent = self._pay(label, ways, totals)
            row = body | {
                "time": journal.now(),
                "spent": [None if s is None else amounts.to_data(s) for s in spent],
                "profiles": journal.keep(connection, text, curves),
            }
            self._append(connection, sequence, last, row)
            for position, total in enumerate(totals):
                journal.set_totals(connection, position, amounts.to_text(total))
            return self._entry(sequence + 1, row, declaration)

        return self._store.persist(work)

    def _ways(
        self, declaration: Declaration, count: int, block_delta: float | None
    ) -> list[list[Amounts] | None]:
        """For each budget the ways to pay; None where the budget is not concerned."""
        cost = declaration.cost
        deletion = cost.only_erasure()
        ways: list[list[Amounts] | None] = []
        for unit, budget in self.terms.budgets:
            # A deletion says nothing about privacy, nor most mechanisms about deletion.
            if not cost.speaks_of_erasure() if isinstance(unit, Erasure) else deletion:
                ways.append(None)
                continue
            event = cost.at(unit, self.terms.maps)
            whole = Repeated(event, count) if count > 1 else event
            distance = Fraction(declaration.sampler_distance) * count
            ways.append(
                filters.spends(self.terms.filter, budget, whole, distance, block_delta)
            )
        if all(way is None for way in ways):
            raise NotCovered(
                f"{declaration.name!r} speaks of {', '.join(cost.spoken_of())}; this"
                " book has budgets at"
                f" {', '.join(str(u) for u, _ in self.terms.budgets)}."
                " Nothing was spent."
            )
        return ways

    def _pay(
        self, label: str, ways: list[list[Amounts] | None], totals: list[Amounts]
    ) -> list[Amounts | None]:
        """Move the totals, in place, or decline as a whole."""
        spent: list[Amounts | None] = []
        rule = self.terms.filter
        for position, (unit, budget) in enumerate(self.terms.budgets):
            options = ways[position]
            if options is None:
                spent.append(None)
                continue
            after = [filters.add(totals[position], option) for option in options]
            fitting = [
                i for i, total in enumerate(after) if filters.fits(rule, budget, total)
            ]
            if not fitting:
                reasons = " or ".join(filters.over(rule, budget, a) for a in after)
                now = filters.spent_epsilon(rule, budget, totals[position])
                raise BudgetExceeded(
                    f"{label!r} would {reasons} (delta {budget.delta:g}) at {unit};"
                    f" {now:.6g} is spent so far. Declined: nothing was released and"
                    " nothing was spent. Use more noise, or ask whoever set the budget."
                )
            totals[position] = after[fitting[0]]
            spent.append(options[fitting[0]])
        return spent

    def _same_charge(
        self, connection: Connection, body: journal.Body, again: bool
    ) -> Entry | None:
        """The entry that this idempotency key made, if it was for the same thing.

        `again`: or the one of this very call, whose answer was lost.
        """
        key = body["idempotency_key"]
        found = None if key is None else journal.charge_by_key(connection, key)
        if found is None and again:
            found = journal.charge_by_id(connection, body["id"])
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
        declared = journal.declaration(connection, before["declaration"])
        return self._entry(sequence, before, declared)

    def _append(
        self, connection: Connection, sequence: int, last: str, body: journal.Body
    ) -> None:
        if self._signer is None and self.terms.signer is not None:
            raise BookMismatch(
                "this book is signed: open it with its signing_key to write."
                " Nothing was spent."
            )
        journal.append(connection, sequence, last, body, self._signer)

    def commit(self, entry: Entry, artefact_digest: str) -> None:
        """Bind the entry to what was released, and wipe its noise key."""
        validate.name(artefact_digest=artefact_digest)

        def work(connection: Connection, again: bool) -> None:
            sequence, last, _ = store.lock_book(connection)
            self._charge_row(connection, entry)
            before = journal.body_of(connection, entry.id, "commit")
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
                    "time": journal.now(),
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
            committed = journal.body_of(connection, entry.id, "commit") is not None
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
            return journal.draws(connection, entry.id)

    def _draw(self, entry: Entry) -> Draw:
        return self._draw_many(entry, 1)[0]

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]:
        token = secrets.token_hex(16)

        def work(connection: Connection, again: bool) -> int:
            sequence, last, _ = store.lock_book(connection)
            paid = self._charge_row(connection, entry)["count"]
            if again:
                before = journal.with_token(connection, entry.id, token)
                if before is not None:
                    return int(before["index"])
            index = journal.draws(connection, entry.id)
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
                "time": journal.now(),
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
            sequence, last, _ = store.lock_book(connection)
            self._charge_row(connection, entry)
            if again and journal.with_token(connection, entry.id, token):
                return
            body = {
                "kind": "note",
                "id": entry.id,
                "about": about,
                "facts": plain,
                "token": token,
                "time": journal.now(),
            }
            self._append(connection, sequence, last, body)

        self._store.persist(work)

    # -- reading ---------------------------------------------------------------

    def _charge_row(self, connection: Connection, entry: Entry) -> journal.Body:
        body = journal.body_of(connection, entry.id, "charge")
        if body is None:
            raise DemurError(
                f"{entry.label!r} ({entry.id[:8]}) is not an entry of this book"
            )
        return body

    def _entry(
        self, sequence: int, body: journal.Body, declaration: Declaration
    ) -> Entry:
        return Entry(
            id=body["id"],
            sequence=sequence,
            label=body["label"],
            declaration=declaration,
            count=body["count"],
            noise=body["noise"],
            time=body["time"],
            dataset=self.terms.dataset,
            durable=self.durable,
            promises=tuple(
                Promise(unit, budget.epsilon, budget.delta)
                for unit, budget in self.terms.budgets
            ),
            maps=self.terms.maps,
        )

    def entries(self) -> list[Entry]:
        """Every charge of the book, in order."""
        with self._store.read() as connection:
            found = journal.charges(connection)
        return [self._entry(*row) for row in found]

    def notes(
        self, entry: Entry | None = None, about: str | None = None
    ) -> tuple[Note, ...]:
        """The notes of the book in order: of one entry, about one thing, or all."""
        with self._store.read() as connection:
            found = journal.notes(connection, entry.id if entry else None)
        return tuple(
            Note(sequence, body["id"], body["about"], body["facts"], body["time"])
            for sequence, body in found
            if about in (None, body["about"])
        )

    def find(self, idempotency_key: str, *, settled: bool = False) -> Entry | None:
        """The charge that was made with this idempotency key, if there is one.

        `settled` takes the book's lock first: a charge whose answer was lost is there
        by then, or never will be. A plain look may come before its commit is over.
        """

        def look(connection: Connection, again: bool = False) -> Entry | None:
            if settled:
                store.lock_book(connection)
            found = journal.charge_by_key(connection, idempotency_key)
            if found is None:
                return None
            sequence, body = found
            declared = journal.declaration(connection, body["declaration"])
            return self._entry(sequence, body, declared)

        if settled:
            return self._store.persist(look)
        with self._store.read() as connection:
            return look(connection)

    def _default_unit(self, unit: Unit | None) -> Unit:
        if unit is not None:
            return unit
        if len(self.terms.budgets) == 1:
            return self.terms.budgets[0][0]
        raise TypeError(
            "unit must be given for a book with several budgets: one of"
            f" {', '.join(str(u) for u, _ in self.terms.budgets)}, or any other unit"
        )

    def reading(
        self, unit: Unit | None = None, *, delta: float | None = None
    ) -> Reading:
        """The whole book at `unit` (default: its one budget's), tight.

        An entry that says nothing about the unit makes the reading fail by name.
        Deletions are never added to a privacy cost, nor the other way round.
        """
        unit = self._default_unit(unit)
        budget = dict(self.terms.budgets).get(unit)
        if delta is None:
            deltas = {b.delta for _, b in self.terms.budgets}
            if budget is None and len(deltas) > 1:
                raise TypeError(f"delta must be given: {unit} has no budget here")
            delta = budget.delta if budget else deltas.pop()
        validate.probability(delta=delta)
        with self._store.read() as connection:
            groups = journal.groups(connection)
            kept = journal.profiles(connection)
        found = read(groups, unit, delta, self.terms.maps, kept)
        if budget is None:
            return found
        (status,) = [s for s in self.status() if s.unit == unit]
        return Reading(**(vars(found) | {"enforced_epsilon": status.spent_epsilon}))

    def epsilon(self, delta: float | None = None, unit: Unit | None = None) -> float:
        """The epsilon of the whole book at `unit` and `delta`, tight."""
        return self.reading(unit, delta=delta).epsilon

    def status(self) -> tuple[BudgetStatus, ...]:
        """Each budget and what the filter counts as spent of it."""
        with self._store.read() as connection:
            totals = [amounts.from_text(text) for text in journal.totals(connection)]
        rule = self.terms.filter
        return tuple(
            BudgetStatus(
                unit,
                budget,
                filters.spent_epsilon(rule, budget, total),
                {
                    k: "used up" if v is None else f"{float(v):.6g}"
                    for k, v in total.items()
                },
            )
            for (unit, budget), total in zip(self.terms.budgets, totals, strict=True)
        )

    def report(self) -> str:
        """The book in a few lines of plain text."""
        lines = [f"Book {self.terms.dataset!r}, filter {self.terms.filter}"]
        for status in self.status():
            lines.append(
                f"  {status.unit}: {status.spent_epsilon:.4g} of"
                f" {status.budget.epsilon:g} at delta {status.budget.delta:g}"
            )
        lines += [f"  {e.sequence}. {e.label}" for e in self.entries()]
        return "\n".join(lines)

    # -- trust -----------------------------------------------------------------

    def head(self) -> Head:
        """The head of the chain; keep it elsewhere to find a cut or a rewrite."""
        with self._store.read() as connection:
            row = connection.execute(
                sa.select(store.book.c.sequence, store.book.c.hash)
            ).one()
        return Head(row.sequence, row.hash)

    def _contains(self, head: Head) -> None:
        with self._store.read() as connection:
            found = (
                journal.hash_at(connection, head.sequence)
                if head.sequence
                else digest(self.terms.to_text())
            )
        if found != head.hash:
            raise BookDamaged(
                f"the book does not contain the exported head {head}: it was restored"
                " from an older copy, cut off or rewritten. What was spent since then"
                " is still spent: do not write to this copy."
            )

    def verify(
        self, head: Head | str | None = None, *, signer: str | None = None
    ) -> Verification:
        """Check every row, link, signature, total and stored curve of the book.

        `head` is an exported head; `signer` the public key (hexadecimal) that must
        have signed every row. Without them the answer says what it cannot know.
        """
        wanted = Head.parse(head) if isinstance(head, str) else head
        with self._store.read() as connection:
            return verify_rows(connection, self.terms, wanted, signer)

    def close(self) -> None:
        """Close the book's connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, _: object) -> Ledger:
        # A copied book would be a second budget: copies are the same book.
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Ledger cannot be pickled: a copy of a book would be a second budget."
            " Pass its address and open it there."
        )

    def __repr__(self) -> str:
        kind = "durable" if self.durable else "in memory"
        return f"<Ledger {self.terms.dataset!r}, {kind}>"


def _salt(entry_id: str, idempotency_key: str | None) -> str:
    """What tells one entry's input digest from another's: the same for its repeats."""
    return f"entry {entry_id}" if idempotency_key is None else f"key {idempotency_key}"


def _state_folder() -> Path:
    """Where a user's program keeps what must survive but is not configuration."""
    chosen = os.environ.get("DEMUR_KEYS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "demur" / "keys"


def _shown(url: str | os.PathLike[str]) -> str:
    """An address without user, password and parameters (one may be a password)."""
    text = os.fspath(url)
    if "://" not in text or text.startswith("sqlite:"):
        return repr(text)
    address = sa.make_url(text)
    where = f"{address.host or ''}/{address.database or ''}"
    return f"{address.drivername}://...{where}"
