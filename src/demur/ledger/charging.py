"""The steps of a payment, for whoever draws the noise: charge, key, draw and commit.

Keys are made, kept and handed out here; what is written to the ledger is the other side
(`demur.ledger.journal`), which knows their hashes alone. The order is always: check,
price, write the entry, and only then draw. A charge returns after its entry is durable;
a crash later leaves it spent. Nothing is ever refunded and there is no reset. A charge
that does not fit is written down as declined: what was asked, by whom, at what cost and
why not; it costs nothing.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core import validate
from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.digest import digest_of_text
from demur.core.display import announcing
from demur.core.entropy import Binding, NoiseKey, Source, source_name
from demur.core.entry import Entry
from demur.core.errors import (
    DemurError,
    EntryCommitted,
    NoiseReuse,
    NotPrivate,
    OutcomeUnknown,
)
from demur.core.recording import record_charge
from demur.core.rounding import printed_down, printed_up
from demur.durable.chain import canonical
from demur.durable.keys import KeyStore
from demur.ledger.journal import Journal
from demur.ledger.reader import BudgetStatus, LedgerReader
from demur.ledger.reservation import Draw
from demur.ledger.rules.filters import BLOCK_DELTA
from demur.ledger.storage import rows
from demur.ledger.storage.acknowledged import Acknowledged


class LedgerCharging(LedgerReader):
    """The steps of a payment, for `Payment` and `LedgerWriter`."""

    _secret = False  # whether nobody may hear of its charges
    _journal: Journal
    _signer: Ed25519PrivateKey | None
    _keys: KeyStore
    _keys_folder: Path | None  # where they are on disk
    _actor: str  # who writes
    _unsafe: tuple[str, ...]  # settings of the server that can lose a commit
    _acknowledged: Acknowledged
    _purpose: str  # why, as requests for approval say it
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
        if block_delta is not None:
            validate.probability(block_delta=block_delta)
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
            "block_delta": None if block_delta is None else float(block_delta),
            "actor": self._actor,
        }
        if self._unsafe:
            body["unsafe"] = list(self._unsafe)
        # The key is stored before the entry is durable: a task killed right after its
        # charge can still be repeated.
        self._keys.put(entry_id, key, keep=_repeatable(body, declaration))
        try:
            entry = self._write_charge(body, text, declaration)
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
            return entry
        if asked is not None:
            asked.paid = True
        if not self._secret and announcing():
            # The entry is spent: no failure to say so may keep its key from the caller.
            with contextlib.suppress(Exception):
                self._announce(entry)
        return entry

    def _announce(self, entry: Entry) -> None:
        """Print one line: what was charged, and what is left of each budget."""
        costs = [entry.cost_alone(promise) for promise in entry.promises]
        if not any(costs):
            return  # nothing was spent
        charged = " and ".join(printed_up(cost) for cost in costs if cost is not None)
        left = "; ".join(
            f"{status.unit}: {status.shown_left}{self._left_delta(status)}"
            for status in self.status()
            if not status.budget.unlimited
        )
        print(f"Charged {entry.label!r}: epsilon {charged}. {left}")

    def _left_delta(self, status: BudgetStatus) -> str:
        """What is left of delta, where entries take their own parts of it."""
        if self.terms.filter.meters or status.budget.delta == 0.0:
            return ""
        spent = float(status.accounts.get(BLOCK_DELTA, 0.0))
        left = status.budget.delta - spent
        left = left if left > 1e-5 * status.budget.delta else 0.0  # six digits are kept
        return f", delta {printed_down(left, 2)} of {status.budget.delta:g}"

    def _write_charge(
        self, body: rows.Body, text: str, declaration: Declaration
    ) -> Entry:
        """The entry of a charge that the ledger's side has paid; durable on return."""
        sequence, row = self._journal.charge(
            body, text, declaration, purpose=self._purpose
        )
        return self._entry(sequence, row, declaration)

    def find(self, idempotency_key: str, *, settled: bool = False) -> Entry | None:
        """The charge that was made with this idempotency key, if there is one.

        `settled` takes the ledger's lock first: a charge whose answer was lost is there
        by then, or never will be. Without it, the look may come before the commit.
        """
        row = self._journal.find(idempotency_key, settled=settled)
        if row is None:
            return None
        return self._entry(*row)

    def _check_writable(self) -> None:
        if self._unwritable is not None:
            error, text = self._unwritable
            raise error(text)

    def _key(self, entry: Entry, digest: str | None) -> NoiseKey:
        """The noise key of an entry: once, or again for the identical input alone.

        What it is bound to comes from the ledger's rows, not from `entry`.
        """
        body, committed, declaration = self._journal.charged(entry.id)
        if committed:
            # The process died, or lost the answer, between its commit and the wipe.
            self._keys.wipe(entry.id)
            raise EntryCommitted(
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
        self._journal.commit(entry.id, artefact)
        self._keys.wipe(entry.id)

    def _drawn(self, entry: Entry) -> int:
        return self._journal.drawn(entry.id)

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]:
        self._check_writable()
        first = self._journal.draw(entry.id, count, secrets.token_hex(16))
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
