"""Notes: facts about an entry beyond its cost, such as an audit or a deletion.

A note is a row of the chain like any other (durable, linked, signed) and costs nothing.
The ledger cannot check whether a fact is safe to publish: it must be computed from
releases and public data alone. A training accuracy, for example, is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from demur.core import validate
from demur.durable.chain import canonical

_ABOUT = re.compile("[a-z][a-z ]{0,39}")
_LONGEST = 65_536


@dataclass(frozen=True)
class Note:
    """Facts about one entry: their subject, the facts, and when they were noted."""

    sequence: int
    entry_id: str
    about: str
    facts: Mapping[str, Any]
    time: str


def checked(about: object, facts: object) -> tuple[str, dict[str, Any]]:
    """The subject and the facts of a note, or a clear error."""
    if not isinstance(about, str) or not _ABOUT.fullmatch(about):
        raise ValueError(
            "about must be one to 40 small letters, such as 'audit' or 'utility';"
            f" got {validate.shorten(about)}"
        )
    if not isinstance(facts, Mapping) or not facts:
        raise TypeError(
            f"facts must be a non-empty mapping; got {validate.shorten(facts)}"
        )
    plain = dict(facts)
    if not all(isinstance(key, str) for key in plain):
        raise TypeError("the keys of facts must be strings")
    try:
        text = canonical(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            "facts must be plain data with finite numbers, as JSON holds it;"
            f" {str(error)[:200]}"
        ) from error
    if len(text) > _LONGEST:
        raise ValueError(
            f"facts take {len(text):,} characters; a note holds {_LONGEST:,}. Keep the"
            " long part in a file and note its digest."
        )
    return about, plain
