"""The registry of a stream: ids of live records, their subjects, and past requests.

It holds ids, no features. Where the record itself will be needed (modes that subtract
it, and calibration) it keeps a keyed digest of (x, y) until the record is deleted: a
deletion that hands in another record is refused, and a deletion by content is
recognised as one of a calibration record. The key is random and stays in this object.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from demur.core import validate
from demur.unlearning.errors import RecordExists, RecordMismatch, UnknownRecord
from demur.unlearning.models.base import Array


@dataclass(frozen=True)
class Request:
    """One deletion request: whose it is, and which live records it names.

    A record without a subject is its own: ("record", id).
    """

    subject: tuple[Literal["subject", "record"], str] | None
    record_ids: tuple[str, ...]
    records: int


class Registry:
    """Live records by id and by subject, and how often each subject has asked."""

    def __init__(self) -> None:
        self._subject_of: dict[str, str | None] = {}
        self._records_of: dict[str, list[str]] = {}
        self._requests_made: dict[tuple[str, str], int] = {}
        self._left: dict[str, str] = {}  # whose a deleted record was
        self._content: dict[str, bytes] = {}
        self._copies: Counter[bytes] = Counter()  # live records of each content
        self._calibration: dict[str, int] = {}
        self._calibration_digests: dict[bytes, int] = {}
        self._key = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._subject_of)

    def __contains__(self, record_id: object) -> bool:
        return record_id in self._subject_of

    def check_new(self, record_id: str | None, subject_id: str | None) -> None:
        """Refuse an id that is live, and a subject's record that has no id."""
        if subject_id is not None:
            validate.name(subject_id=subject_id)
            if record_id is None:
                raise ValueError(
                    "record_id must be given with subject_id: a person's records are"
                    " found by their ids. Nothing was learned."
                )
        if record_id is None:
            return
        validate.name(record_id=record_id)
        if record_id in self._subject_of:
            raise RecordExists(
                f"record {record_id!r} is live already; delete it first, or use a new"
                " id. Nothing was learned."
            )

    def add(self, record_id: str, subject_id: str | None) -> None:
        """Note a learned record; learned again, it belongs to its old subject."""
        if subject_id is None:
            subject_id = self._left.get(record_id)
        self._subject_of[record_id] = subject_id
        if subject_id is not None:
            self._records_of.setdefault(subject_id, []).append(record_id)

    def add_calibration(
        self, record_id: str | None, index: int, x: Array, y: float
    ) -> None:
        """Note that observation `index` of the calibrator came from this record."""
        if record_id is not None:
            self._calibration[record_id] = index
        else:
            self._calibration_digests.setdefault(self._digest(x, y), index)

    def request(
        self,
        record_id: str | None,
        subject_id: str | None,
        rows: int | None,
        unnamed: int,
    ) -> Request:
        """What a deletion concerns, or UnknownRecord.

        `rows` is how many records came by content, `unnamed` how many without an id
        are live.
        """
        if record_id is not None:
            if record_id not in self._subject_of:
                raise UnknownRecord(
                    f"no live record has the id {record_id!r}. Nothing was spent."
                )
            owner = self._subject_of[record_id]
            if subject_id is not None and subject_id != owner:
                raise UnknownRecord(
                    f"record {record_id!r} does not belong to subject {subject_id!r}."
                    " Nothing was spent."
                )
            if owner is None:
                return Request(("record", record_id), (record_id,), 1)
            return Request(("subject", owner), (record_id,), 1)
        if subject_id is not None:
            owned = tuple(self._records_of.get(subject_id, ()))
            if not owned:
                raise UnknownRecord(
                    f"subject {subject_id!r} has no live record. Nothing was spent."
                )
            return Request(("subject", subject_id), owned, len(owned))
        if rows is None:
            raise TypeError(
                "delete needs record_id=, subject_id=, or the record itself (x, y)."
                " Nothing was spent."
            )
        if rows > unnamed:
            raise UnknownRecord(
                f"{rows} records are to be deleted by content, and {unnamed} live"
                " ones were learned without an id. Nothing was spent."
            )
        return Request(None, (), rows)

    def add_content(self, record_id: str, x: Array, y: float) -> None:
        """Note what was learned under this id, as a digest."""
        digest = self._digest(x, y)
        self._content[record_id] = digest
        self._copies[digest] += 1

    def live_copies(
        self, request: Request, rows: Array | None, targets: Array | None
    ) -> tuple[str, ...]:
        """Live records that the request does not name and that equal one it deletes.

        Known where contents are (`add_content`), for records that have an id.
        """
        named = set(request.record_ids)
        deleted = Counter(self._content[i] for i in named if i in self._content)
        if not named and rows is not None and targets is not None:
            pairs = zip(rows, targets, strict=True)
            deleted = Counter({self._digest(x, y): 0 for x, y in pairs})
        copied = {d for d, count in deleted.items() if self._copies[d] > count}
        if not copied:  # the usual case: no look at every live record
            return ()
        live = self._content.items()
        return tuple(i for i, d in live if d in copied and i not in named)

    def check_content(self, request: Request, rows: Array, targets: Array) -> None:
        """Refuse records that are not those learned under the request's ids."""
        for record_id, x, y in zip(request.record_ids, rows, targets, strict=False):
            known = self._content.get(record_id)
            if known is not None and known != self._digest(x, y):
                raise RecordMismatch(
                    f"this is not the record that was learned as {record_id!r}:"
                    " forgetting it would damage the model. Nothing was spent."
                )

    def request_number(self, request: Request, earlier: Sequence[Request] = ()) -> int:
        """Which request of its subject this is, counted from 1.

        `earlier` ones come before this one and are not counted yet.
        """
        if request.subject is None:
            return 1
        before = sum(other.subject == request.subject for other in earlier)
        return self._requests_made.get(request.subject, 0) + before + 1

    def first_calibration(
        self, request: Request, rows: Array | None, targets: Array | None
    ) -> int | None:
        """The earliest calibration observation that the request concerns, if any."""
        observations = [
            self._calibration[i] for i in request.record_ids if i in self._calibration
        ]
        if not request.record_ids and rows is not None and targets is not None:
            digests = (self._digest(x, y) for x, y in zip(rows, targets, strict=True))
            observations += [
                self._calibration_digests[d]
                for d in digests
                if d in self._calibration_digests
            ]
        return min(observations, default=None)

    def remove(self, request: Request) -> None:
        """Forget the records of an executed request, and count it."""
        if request.subject is not None:
            self._requests_made[request.subject] = (
                self._requests_made.get(request.subject, 0) + 1
            )
        for record_id in request.record_ids:
            owner = self._subject_of.pop(record_id)
            digest = self._content.pop(record_id, None)
            if digest is not None:
                self._copies[digest] -= 1
                if not self._copies[digest]:
                    del self._copies[digest]
            if owner is not None:
                self._left[record_id] = owner
                self._records_of[owner].remove(record_id)
                if not self._records_of[owner]:
                    del self._records_of[owner]

    def check_live(
        self,
        rows: Sequence[tuple[Array, float]],
        record_ids: Sequence[str | None] | None,
        unnamed: int,
    ) -> None:
        """Refuse records that are not the live ones, all of them and no others.

        With ids (None for a record that was learned without one) ids and contents are
        compared; without them, the contents of all records that have an id. Of those
        without one, `unnamed`, only the number is known.
        """
        if record_ids is None:
            missing = Counter(self._content.values())
            missing.subtract(self._digest(x, y) for x, y in rows)
            complete = all(count <= 0 for count in missing.values())
            if not complete or len(rows) != len(self) + unnamed:
                raise _not_the_live_ones()
            return
        named = [i for i in record_ids if i is not None]
        self._check_not_deleted(named)
        if set(named) != set(self._subject_of) or len(record_ids) != len(rows):
            raise _not_the_live_ones()
        if len(record_ids) - len(named) != unnamed:
            raise _not_the_live_ones()
        for record_id, (x, y) in zip(record_ids, rows, strict=True):
            if record_id is not None and self._content[record_id] != self._digest(x, y):
                raise _not_the_live_ones()

    def _check_not_deleted(self, record_ids: Sequence[str]) -> None:
        if len(set(record_ids)) != len(record_ids):
            raise RecordExists(
                "an id occurs twice among the records to renew by. Nothing has changed."
            )
        for record_id in record_ids:
            asked = ("record", record_id) in self._requests_made
            if record_id not in self and (asked or record_id in self._left):
                raise RecordExists(
                    f"record {record_id!r} was deleted: leave it out, and insert it"
                    " afterwards if its owner wants it back. Nothing has changed."
                )

    def forget_calibration_from(self, index: int) -> None:
        """Observation `index` and all later ones are gone."""
        self._calibration = {k: i for k, i in self._calibration.items() if i < index}
        self._calibration_digests = {
            k: i for k, i in self._calibration_digests.items() if i < index
        }

    def _digest(self, x: Array, y: float) -> bytes:
        content = np.append(np.asarray(x, dtype=np.float64), float(y))
        content += 0.0  # -0.0 is 0.0
        keyed = hashlib.blake2b(content.tobytes(), key=self._key, digest_size=16)
        return keyed.digest()


def _not_the_live_ones() -> RecordMismatch:
    return RecordMismatch(
        "these are not the live records, all of them and no others. Nothing has"
        " changed."
    )
