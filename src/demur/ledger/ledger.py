"""The ledger that every engine charges before noise is drawn: opening and closing it.

`demur.ledger.writer` has what is written to it, `demur.ledger.reader` what is read.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core import validate
from demur.core.adjacency import AnyUnit, LipschitzMap, Unit
from demur.core.display import Displayed
from demur.core.errors import LedgerDamaged, LedgerMismatch, LedgerMissing
from demur.durable import chain
from demur.durable.chain import Tip
from demur.durable.keys import KeyStore, keys_folder
from demur.durable.postgres import Timeouts
from demur.durable.store import shown_address
from demur.ledger.journal import Journal
from demur.ledger.remote.journal import RemoteJournal
from demur.ledger.remote.mirror import RemoteStore
from demur.ledger.rules import amounts
from demur.ledger.rules.approval import ApprovalRule
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Filter
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import tables
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore
from demur.ledger.storage.receipts import ReceiptFile
from demur.ledger.writer import LedgerWriter


class Ledger(Displayed, LedgerWriter):
    """A ledger of charges with a budget for each unit.

    In memory, for one process:

    >>> from demur import AddOrRemoveOne
    >>> from demur.mechanisms import Gaussian
    >>> ledger = Ledger(Budget(epsilon=2.0, delta=1e-6), unit=AddOrRemoveOne())
    >>> count = Gaussian(4.0, {AddOrRemoveOne(): 1.0})
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
        """A ledger in memory, for this process; see `open` for a durable one."""
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
        self._attach(LedgerStore(None), terms, None, keys=None)

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        dataset: str | None = None,
        budgets: Mapping[AnyUnit, Budget] | None = None,
        filter: Filter | str | None = None,
        maps: Iterable[LipschitzMap] | None = None,
        approval: ApprovalRule | None = None,
        tip: Tip | str | None = None,
        signing_key: Ed25519PrivateKey | Path | str | None = None,
        keys: str | os.PathLike[str] | None = None,
        token: str | None = None,
        testing: bool | None = None,
        timeouts: Timeouts | None = None,
        actor: str | None = None,
        purpose: str = "",
        read_only: bool = False,
        unsafe_server: bool = False,
    ) -> Ledger:
        """A durable ledger at a file path, `sqlite:///...` or `postgresql://...`.

        Or one that a service keeps (`demur serve`), at `https://HOST/ledgers/NAME`,
        with a `token` (default: DEMUR_TOKEN). The service prices, enters and signs;
        keys and noise stay here.

        The first opening fixes dataset, budgets, filter, maps, signer, which charges
        need approval, and whether the ledger is for testing; later ones may leave them
        out, and are refused if they name others. `tip` is an exported tip: a ledger
        that does not contain it (one restored from an older backup) is refused.
        `signing_key` is an Ed25519 key, or a PEM file that only its owner can read
        (`load_signing_key` takes its password).
        `keys` is the owner-only folder for noise keys of entries not yet committed
        (default: beside a file, or under the user's state folder for a server); one
        that others can read or change is refused. `timeouts` say how long a server is
        waited for; see `OutcomeUnknown` for what a lost answer means.

        `actor` is who charges, as entries record it (default: user@host); `purpose` is
        what for, as an officer reads it on a request for approval. With
        `read_only` nothing is written, and no right to write is needed. A server whose
        settings can lose a commit (`fsync`, `full_page_writes`) is refused, unless
        `unsafe_server` says otherwise; entries then record it.
        """
        place = _place(os.fspath(url), token, timeouts, read_only)
        if place.remote and (signing_key is not None or actor is not None):
            raise ValueError(
                "signing_key and actor are the service's for a served ledger: it signs,"
                " and takes names from tokens. Nothing was spent."
            )
        signer = chain.load_signing_key(signing_key) if signing_key else None
        public = chain.public_hex(signer) if signer else None
        self = cls.__new__(cls)
        with ExitStack() as refused:  # A refusal leaves no connection open.
            refused.callback(place.close)
            if isinstance(place, RemoteStore):
                actor = place.who()
            first: Terms | None = None
            if not place.exists():
                if tip is not None or budgets is None or read_only:
                    raise LedgerMissing(
                        f"there is no ledger at {shown_address(url)}. To create one,"
                        " call Ledger.open(place, dataset=..., budgets={unit:"
                        " Budget(...)}) without tip=. Nothing was created."
                    )
                if any(budget.unlimited for budget in budgets.values()):
                    raise ValueError(
                        "epsilon must be below the largest float: a ledger that is kept"
                        " has a limit. Nothing was created."
                    )
                first = Terms.make(
                    dataset="" if dataset is None else dataset,
                    budgets=budgets,
                    filter=filter,
                    maps=maps or (),
                    signer=public,
                    testing=bool(testing),
                    approval=approval,
                )
            self._attach(
                place,
                first,
                signer,
                keys=Path(keys) if keys else None,
                actor=actor,
                purpose=purpose,
                unsafe_server=unsafe_server,
            )
            self._check_asked(dataset, budgets, filter, maps, testing, approval, public)
            if tip is not None:
                known = Tip.parse(tip) if isinstance(tip, str) else tip
                self._contains(known)
                self._acknowledged.know(known)
            refused.pop_all()
        return self

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str],
        *,
        dataset: str,
        budgets: Mapping[AnyUnit, Budget],
        filter: Filter | str | None = None,
        maps: Iterable[LipschitzMap] = (),
        approval: ApprovalRule | None = None,
        signing_key: Ed25519PrivateKey | Path | str | None = None,
        keys: str | os.PathLike[str] | None = None,
        testing: bool = False,
    ) -> Ledger:
        """A new durable ledger; an address that has one already is refused.

        For whoever sets the budgets. The arguments are those of `open`, which makes a
        ledger only where there is none and opens it otherwise.
        """
        place = LedgerStore(os.fspath(url))
        signer = chain.load_signing_key(signing_key) if signing_key else None
        self = cls.__new__(cls)
        with ExitStack() as refused:
            refused.callback(place.close)
            first = Terms.make(
                dataset=dataset,
                budgets=budgets,
                filter=filter,
                maps=maps,
                signer=chain.public_hex(signer) if signer else None,
                testing=testing,
                approval=approval,
            )
            made = not place.exists()
            if made:
                folder = Path(keys) if keys else None
                made = self._attach(place, first, signer, keys=folder)
            if not made:
                raise LedgerMismatch(
                    f"there is a ledger at {shown_address(url)} already, and its terms"
                    " never change. Open it, or give the new one another address."
                    " Nothing was changed."
                )
            refused.pop_all()
        return self

    def _attach(
        self,
        place: LedgerStore,
        terms: Terms | None,
        signer: Ed25519PrivateKey | None,
        keys: Path | None,
        actor: str | None = None,
        purpose: str = "",
        unsafe_server: bool = False,
    ) -> bool:
        """Read the ledger at this place, or make it; whether it was made now."""
        self._store, self._signer = place, signer
        if purpose:
            validate.text(purpose=purpose)
        self._purpose = purpose
        self._actor = _this_user() if actor is None else actor
        validate.name(actor=self._actor)
        self._unsafe = place.unsafe_settings()
        if self._unsafe and not (unsafe_server or place.read_only):
            raise LedgerMismatch(
                f"this server may lose what it acknowledged: {', '.join(self._unsafe)}."
                " Let its administrator set them on, or open with unsafe_server=True:"
                " every entry will say so. Nothing was spent."
            )
        made: str | None = None
        if terms is not None:
            totals = amounts.to_text([{} for _ in terms.budgets])
            plain = terms.approval is None
            version = tables.SCHEMA_VERSION if plain else tables.APPROVALS_VERSION
            text = terms.to_text()
            new = Header.first(secrets.token_hex(16), text, totals, version)
            place.create(new)  # unless another process was first
            made = new.ledger_id
        place.migrate()
        header, begins, ends = place.opened()
        self.terms = Terms.from_text(header.terms)
        self.id = header.ledger_id
        self._unwritable = None
        if place.read_only:
            self._unwritable = (
                LedgerMismatch,
                "this ledger was opened to be read: open it without read_only to write."
                " Nothing was spent.",
            )
        elif not begins:
            self._unwritable = (
                LedgerDamaged,
                "this ledger does not begin as it was made: its id, schema, terms or"
                " first row were changed. Verify it. Nothing was spent.",
            )
        elif not ends:
            self._unwritable = (
                LedgerDamaged,
                "this ledger does not end with the row it names: its file was copied in"
                " the middle of a write, or rows were cut off. Go back to an intact"
                " copy. Nothing was spent.",
            )
        elif signer is None and self.terms.signer is not None and not place.remote:
            self._unwritable = (
                LedgerMismatch,
                "this ledger is signed: open it with its signing_key to write."
                " Nothing was spent.",
            )
        folder: Path | None = None
        if place.durable:
            chosen = keys or place.keys_folder or keys_folder() / self.id
            folder = chosen.expanduser().absolute()  # wherever the process goes later
        self._keys, self._keys_folder = KeyStore(folder), folder
        receipts: ReceiptFile | None = None
        if folder is not None and not place.is_sqlite and not place.read_only:
            receipts = ReceiptFile(folder / "receipts.jsonl")
        self._acknowledged = Acknowledged(self.id, receipts)
        known = self._acknowledged
        self._journal = (
            RemoteJournal(place, self.terms, self.id, known)
            if isinstance(place, RemoteStore)
            else Journal(place, self.terms, self.id, signer, known)
        )
        return self.id == made

    def _check_asked(
        self,
        dataset: str | None,
        budgets: Mapping[AnyUnit, Budget] | None,
        filter: Filter | str | None,
        maps: Iterable[LipschitzMap] | None,
        testing: bool | None,
        approval: ApprovalRule | None,
        signer: str | None,
    ) -> None:
        """Refuse terms that are not the ledger's; those left out are not compared."""
        own = self.terms
        known: Mapping[Any, Budget] = dict(own.budgets)
        own.must_equal(
            Terms.make(
                dataset=own.dataset if dataset is None else dataset,
                budgets=known if budgets is None else budgets,
                filter=own.filter if filter is None else filter,
                maps=own.maps if maps is None else maps,
                signer=own.signer,
                testing=own.testing if testing is None else testing,
                approval=own.approval if approval is None else approval,
            )
        )
        if signer is not None and own.signer != signer:
            raise LedgerMismatch(
                f"this ledger is signed by {own.signer or 'nobody'}; signing_key"
                f" belongs to {signer}. Nothing was spent."
            )

    def file_path(self) -> Path | None:
        """The file that other processes can charge too; None if there is none."""
        return None if self._store.read_only else self._store.path

    def keys_path(self) -> Path | None:
        """The folder of noise keys; None for a ledger in memory."""
        return self._keys_folder

    def close(self) -> None:
        """Close the ledger's connections; one in memory is gone with its entries."""
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


def _place(
    url: str, token: str | None, timeouts: Timeouts | None, read_only: bool
) -> LedgerStore:
    """The place of a ledger: a file, a database, or a service."""
    if url.startswith(("https://", "http://")):
        return RemoteStore(url, token, timeouts, read_only=read_only)
    if token is not None:
        raise ValueError(
            "token is for a service, at https://HOST/ledgers/NAME. Nothing was spent."
        )
    return LedgerStore(url, timeouts, read_only=read_only)


@cache
def _this_user() -> str:
    """The user and the host, as far as the system knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this number
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
