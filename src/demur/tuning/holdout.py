"""Held-back persons: who is trained on, and who scores.

The rule must look at one person alone. A random permutation of n rows, or every fifth
row, moves other persons to the other part when somebody is added or removed: two
neighbouring datasets would then differ in many records. A keyed hash of a person's own
id does not: whoever else is there, the same person is on the same side, and so are all
of the person's records. So two neighbouring datasets differ in one of the two parts
alone, and the pair (trained model, score) costs the larger of the two prices, not the
sum.

The key is public and is chosen before the data are looked at. It is there so that ids
which somebody chose, or whose digits mean something, are spread evenly all the same.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.adjacency import AddOrRemoveOne, Unit

KEY = "demur held back"
SHARE = 0.2


def held_back(
    ids: ArrayLike, share: float = SHARE, *, key: str = KEY
) -> NDArray[np.bool_]:
    """For each row whether its person is held back, to score and not to train on.

    `ids` names the person of each row by a whole number or a text; about `share` of the
    persons are held back. The answer for a person depends on the id, the share and the
    key alone.

    >>> held_back(["ann", "bob", "cem", "ann"], 0.5)
    array([ True, False,  True,  True])
    """
    validate.open_probability(share=share)
    validate.name(key=key)
    names = np.asarray(ids)
    if np.ma.is_masked(ids):
        raise ValueError(
            "ids must be whole numbers or texts, none of them masked. Nothing was"
            " spent."
        )
    if names.ndim != 1 or names.dtype.kind not in "iuUSO":
        raise ValueError(
            "ids must be one whole number or text for each row; got"
            f" {names.dtype} of shape {names.shape}. Nothing was spent."
        )
    kinds = str | int | np.integer
    if names.dtype.kind == "O" and not all(isinstance(n, kinds) for n in names):
        raise ValueError(
            "ids must be whole numbers or texts, none of them missing. Nothing was"
            " spent."
        )
    limit = int(share * 2.0**64)
    try:
        unique, where = np.unique(names.astype(str), return_inverse=True)
        sides = [_place(key, name) < limit for name in unique]
    except UnicodeError:
        raise ValueError(
            "ids must be texts that can be written as UTF-8 (bytes: ASCII). Nothing was"
            " spent."
        ) from None
    return np.asarray(sides, dtype=np.bool_)[where]


def divided(
    ids: ArrayLike | None,
    rows: int,
    unit: Unit,
    share: float = SHARE,
    key: str = KEY,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The person of each row, and who of them is held back; or why that cannot be.

    Without `ids` the number of a row names its person: each row is another person's,
    and the number of rows is public.
    """
    if ids is None and (unit.records_per_person > 1 or _may_come_and_go(unit)):
        raise ValueError(
            f"ids must name the person of each row at {unit}: without them rows are"
            " divided by their numbers, and records of one person would be trained on"
            " and scored with, or others would change sides when a record is added or"
            " removed. Nothing was spent."
        )
    names = np.arange(rows) if ids is None else np.ma.asarray(ids)
    if names.ndim != 1 or len(names) != rows:
        raise ValueError(
            f"ids must name the person of each of {rows} rows; got shape {names.shape}."
            " Nothing was spent."
        )
    back = held_back(names, share, key=key)
    if back.all() or not back.any():
        raise ValueError(
            "there are too few persons: all of them, or none, would be held back."
            " Nothing was spent."
        )
    return np.asarray(names), back


def _may_come_and_go(unit: Unit) -> bool:
    return isinstance(unit, AddOrRemoveOne)


def _place(key: str, name: Any) -> int:
    """A number below 2^64 that follows from key and id."""
    digest = hmac.new(key.encode(), str(name).encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big")
