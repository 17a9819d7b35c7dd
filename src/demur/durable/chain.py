"""Hash chains: canonical text, links, tips and signatures.

Row k has hash_k = SHA-256(hash_(k-1) || body_k), and the genesis is the hash of the
terms (of a ledger or a deletion service). Anyone who knows hash_k can detect any change
to rows 1..k: an edited, removed or reordered row changes a link, and making the links
right again needs another hash_k (a collision). A chain alone cannot show that its *end*
was cut off, or that the whole of it was rewritten. For those, an exported tip (sequence
and hash, stored elsewhere) or signatures are needed.
"""

from __future__ import annotations

import json
import numbers
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from demur.core.digest import digest_of_text
from demur.durable import private_files

_HASH = re.compile("[0-9a-f]{64}")


def canonical(data: Any) -> str:
    """The canonical JSON of a value: sorted keys, no spaces, ASCII, finite numbers."""
    return json.dumps(
        data,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
        default=_plain,
    )


def _plain(value: object) -> int | float:
    """A number of another library, such as numpy's, as Python's own."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def link(previous: str, body: str) -> str:
    """The hash of a row, from the hash before it and its own text."""
    return digest_of_text(f"{previous}\n{body}")


@dataclass(frozen=True)
class Tip:
    """The last row of a chain: its number, and the hash that fixes all rows up to it.

    An exported tip, stored elsewhere, shows later whether rows were cut off or
    rewritten.
    """

    sequence: int
    hash: str

    def __post_init__(self) -> None:
        if isinstance(self.sequence, bool) or not isinstance(self.sequence, int):
            raise TypeError(f"sequence must be a whole number; got {self.sequence!r}")
        if not 0 <= self.sequence < 2**62:
            raise ValueError(f"sequence must be from 0 to 2^62; got {self.sequence}")
        if not isinstance(self.hash, str) or not _HASH.fullmatch(self.hash):
            raise ValueError("hash must be 64 hexadecimal digits")

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Tip:
        """The tip that `str` wrote, "sequence:hash"."""
        number, _, value = text.strip().partition(":")
        if not (number.isascii() and number.isdigit()):
            raise ValueError(
                "tip must read SEQUENCE:HASH, as `demur ledger export --tip` prints it;"
                f" got {text[:80]!r}"
            )
        return cls(int(number), value)


def load_signing_key(
    key: Ed25519PrivateKey | Path | str, password: str | bytes | None = None
) -> Ed25519PrivateKey:
    """An Ed25519 private key, given as itself or as a PEM file, with its password."""
    if isinstance(key, Ed25519PrivateKey):
        return key
    secret = password.encode() if isinstance(password, str) else password
    content = private_files.read_file(Path(key))
    try:
        loaded = serialization.load_pem_private_key(content, password=secret)
    except TypeError as error:
        # cryptography raises it for a password that is missing or not needed.
        wanted = (
            "needs a password: give load_signing_key(path, password)"
            if secret is None
            else "takes no password"
        )
        raise ValueError(f"the signing key {key} {wanted}") from error
    except ValueError as error:
        raise ValueError(
            f"{key} holds no Ed25519 private key in PEM, or the password is wrong"
        ) from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ValueError(f"{key} holds no Ed25519 private key")
    return loaded


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public half, as the terms record it."""
    return key.public_key().public_bytes_raw().hex()


def sign(key: Ed25519PrivateKey, row_hash: str) -> str:
    """The signature of one row's hash, in hexadecimal."""
    return key.sign(bytes.fromhex(row_hash)).hex()


def evidence_digest(content: bytes) -> str:
    """The digest of what is signed beside rows, which none of them can have."""
    return digest_of_text(f"demur evidence\n{digest_of_text(content)}")


def signed_by(public: str, row_hash: str, signature: str | None) -> bool:
    """Whether `signature` over `row_hash` is the signer's."""
    if signature is None:
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), bytes.fromhex(row_hash))
    except (InvalidSignature, ValueError):
        return False
    return True
