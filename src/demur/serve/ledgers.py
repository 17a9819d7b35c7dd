"""The ledgers of a service, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core.errors import DemurError, LedgerMissing
from demur.ledger import Ledger, LedgerCalls

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ServedLedgers:
    """Ledgers that are open, each under the name of its file or one that was given."""

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        for name in ledgers:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"the name of a served ledger must be letters, digits, '.', '_' or"
                    f" '-'; got {name[:80]!r}"
                )
        self._calls = {name: LedgerCalls(ledger) for name, ledger in ledgers.items()}

    @classmethod
    def open(
        cls, addresses: list[str], signing_key: Ed25519PrivateKey | None = None
    ) -> ServedLedgers:
        """Open ledgers at NAME=ADDRESS, at files, and of all *.db files in folders.

        `signing_key` is for those of them that are signed.
        """
        places: dict[str, str] = {}
        for given in addresses:
            for name, address in _places(given):
                if name in places:
                    raise ValueError(
                        f"two ledgers would be served as {name!r}: name one of them,"
                        " as in NAME=ADDRESS"
                    )
                places[name] = address
        if not places:
            raise LedgerMissing("there is no ledger to serve. Nothing was created.")
        opened: dict[str, Ledger] = {}
        try:
            for name, address in places.items():
                opened[name] = Ledger.open(address)
                if signing_key is not None and opened[name].terms.signer is not None:
                    opened[name].close()
                    opened[name] = Ledger.open(address, signing_key=signing_key)
            return cls(opened)
        except BaseException:
            for ledger in opened.values():
                ledger.close()
            raise

    def names(self) -> list[str]:
        """All names, in order."""
        return sorted(self._calls)

    def calls(self, name: str) -> LedgerCalls:
        """The calls of one ledger."""
        if name not in self._calls:
            raise LedgerMissing("there is no such ledger here. Nothing was spent.")
        return self._calls[name]

    def close(self) -> None:
        """Close all of them."""
        for calls in self._calls.values():
            calls.ledger.close()


def _places(given: str) -> list[tuple[str, str]]:
    name, equals, address = given.partition("=")
    if equals and _NAME.fullmatch(name):
        return [(name, address)]
    if given.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
        raise DemurError(
            "a ledger on a server needs a name to be served under: NAME=postgresql://"
            "..."
        )
    path = Path(given.removeprefix("sqlite:///")).expanduser()
    if path.is_dir():
        return [(file.stem, str(file)) for file in sorted(path.glob("*.db"))]
    return [(path.stem, given)]
