"""Commitments to ids: pseudonyms that the holder of an opening can tie to an id.

A pseudonym of a record (or of a person) is HMAC-SHA256(opening, kind || id), where the
opening is 32 bytes. It is in the journal from the row on in which the record was
learned, and in the certificate of its deletion. The opening goes to whoever asked for
the deletion. With it and the id they show that the certificate is theirs.

*Hiding.* Without a memory key an opening is 32 random bytes, kept with the live record
and erased with it. With one it is HMAC-SHA256(memory key, kind || id), and what is
stored is the exclusive or with HMAC-SHA256(memory key, pseudonym), another point of the
same function. In both cases it is, to whoever has neither the opening nor the memory
key, a key of HMAC that is used for one message: if HMAC-SHA256 is a pseudorandom
function, the pseudonym is as good as 32 random bytes, whatever the id. So trying ids
tells nothing, however few there are. An opening tells nothing of another one either.
(A memory key from a passphrase can be guessed by whoever has the folder, as before.)

*Binding.* Suppose that two different pairs (opening, id) have one pseudonym. Openings
have exactly 32 bytes, so HMAC pads them with the same zeros, and different openings
make different outer inputs, (key + opad) || inner digest. Either the outer inputs
differ, and collide under SHA-256; or openings and inner digests are equal, and the
inner inputs, which then differ in the id, collide. Whoever shows a certificate under
two ids has found a collision of SHA-256. The kinds differ before their zero byte, so a
record's id never passes for a person's.

What it does not show: that the record learned under this id was what its owner gave.
The pseudonym is fixed when a record is learned, by the process that learns it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from demur.core import validate

Kind: TypeAlias = Literal["record", "subject"]
_OPENING = re.compile("[0-9a-f]{64}")  # 32 bytes


def id_bytes(name: str, value: object) -> bytes:
    """An id as bytes; a whole number is its own text, as 7 and "7" are one id."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        value = str(int(value))
    if not isinstance(value, str):
        raise TypeError(
            f"{name} must be a string or a whole number; got {type(value).__name__}"
        )
    try:
        validate.name(**{name: value})
    except ValueError:  # which quotes it
        raise ValueError(f"{name} must be 1 to 200 printable characters") from None
    return value.encode()


def id_list(name: str, given: Iterable[Any], *, ordered: bool = False) -> list[Any]:
    """Several ids, as a list; one alone is refused, as "17" would be "1" and "7".

    With `ordered`, each belongs to a row: a set has no order.
    """
    kinds: tuple[type, ...] = (str, bytes, bytearray, Mapping)
    if isinstance(given, (*kinds, set, frozenset) if ordered else kinds):
        raise TypeError(
            f"{name} must be a list of ids, one for each record; got"
            f" {type(given).__name__}. Nothing has changed."
        )
    try:
        return list(given)
    except TypeError:  # a number, None, an array without a length
        raise TypeError(
            f"{name} must be a list of ids; got {type(given).__name__}. Nothing has"
            " changed."
        ) from None


def commitment(opening: str, kind: Kind, identifier: str | int) -> str:
    """The pseudonym of an id, by its opening (64 hexadecimal digits)."""
    text = f"demur {kind}\x00".encode() + id_bytes(f"{kind}_id", identifier)
    return hmac.digest(bytes.fromhex(opening), text, "sha256").hex()


@dataclass(frozen=True)
class Opening:
    """What ties a certificate to the id of its record, and to that of its person.

    Whoever holds it can prove that a certificate is about an id they know. It is a
    secret of its holder's: to anybody else it says whose record was deleted.
    `subject` is None where no `subject_id` was named.
    """

    record: str = field(repr=False)
    subject: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for part in (self.record, self.subject):
            if part is not None and not _OPENING.fullmatch(part):
                raise ValueError(
                    "an opening is 64 hexadecimal digits, or two of these with a dot"
                    " between them: give it as it came with the certificate"
                )

    def __str__(self) -> str:
        return self.record if self.subject is None else f"{self.record}.{self.subject}"

    @classmethod
    def parse(cls, text: str) -> Opening:
        """The opening that `str` wrote."""
        record, dot, subject = text.strip().partition(".")
        return cls(record, subject if dot else None)

    def fits(self, kind: Kind, identifier: str | int, pseudonym: str) -> bool:
        """Whether this opens a pseudonym to an id."""
        part = self.record if kind == "record" else self.subject
        if part is None:
            return False
        return hmac.compare_digest(commitment(part, kind, identifier), pseudonym)
