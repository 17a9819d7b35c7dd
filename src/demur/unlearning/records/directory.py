"""Which pseudonym an id has, while its record is live or for good.

A service that remembers ids has one pseudonym for each, for ever. Any other draws a
pseudonym for each record, and knows its id for as long as the record is live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from demur.core.entropy import Source
from demur.unlearning.records.pseudonyms import Pseudonyms


class NewRecord(NamedTuple):
    """A record that may be learned, as journal and tables will name it.

    `name` and `subject_name` are those of ids that are not remembered.
    """

    pseudonym: str
    generation: int
    subject: str
    name: str | None = None
    subject_name: str | None = None


class Directory:
    """The pseudonyms of the ids that a service knows."""

    def __init__(
        self,
        pseudonyms: Pseudonyms,
        source: Source,
        live: Iterable[NewRecord],
    ) -> None:
        self._pseudonyms, self._source = pseudonyms, source
        self._live: dict[str, NewRecord] = {}  # by pseudonym, where names are erased
        self._records: dict[str, str] = {}  # pseudonyms by the names of ids
        self._subjects: dict[str, str] = {}
        self._counts: Counter[str] = Counter()  # live records of each named subject
        for record in live:
            self.add(record)

    @property
    def remembers(self) -> bool:
        """Whether an id is known when its record is gone."""
        return self._pseudonyms.remembers

    def find(self, record_id: str | int) -> str:
        """The pseudonym of a record; of an id that is not known, one that none has."""
        name = self._pseudonyms.record(record_id)
        return self._records.get(name, name)

    def find_subject(self, subject_id: str | int) -> str:
        """The pseudonym of a person; of one that is not known, one that none has."""
        name = self._pseudonyms.subject(subject_id)
        return self._subjects.get(name, name)

    def new(
        self, record_id: str | int, subject_id: str | int | None = None
    ) -> NewRecord:
        """Names for a record whose id is not known."""
        name = self._pseudonyms.record(record_id)
        if self.remembers:
            subject = (
                self._pseudonyms.alone(name)
                if subject_id is None
                else self._pseudonyms.subject(subject_id)
            )
            return NewRecord(name, 1, subject)
        pseudonym = self._token()
        if subject_id is None:
            return NewRecord(pseudonym, 1, self._pseudonyms.alone(pseudonym), name)
        subject_name = self._pseudonyms.subject(subject_id)
        # Two new records of one person get the same.
        subject = self._subjects.setdefault(subject_name, self._token())
        return NewRecord(pseudonym, 1, subject, name, subject_name)

    def _token(self) -> str:
        return self._source.new_key().hex()

    def add(self, record: NewRecord) -> None:
        """Note a record that was learned."""
        if record.name is None:
            return
        self._live[record.pseudonym] = record
        self._records[record.name] = record.pseudonym
        if record.subject_name is not None:
            self._subjects[record.subject_name] = record.subject
            self._counts[record.subject_name] += 1

    def end(self, pseudonym: str) -> None:
        """Forget the id of a record that is gone, and of a person without others."""
        record = self._live.pop(pseudonym, None)
        if record is None or record.name is None:
            return
        del self._records[record.name]
        if record.subject_name is not None:
            self._counts[record.subject_name] -= 1
            if not self._counts[record.subject_name]:
                del self._counts[record.subject_name]
                del self._subjects[record.subject_name]
