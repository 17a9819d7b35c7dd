"""Which pseudonym an id has, while its record is live or for good.

A service that remembers ids has one pseudonym for each, for ever. Any other draws one
for each record, and knows its id for as long as the record is live. Either way a
pseudonym is a commitment to its id (`commitments`), whose opening goes to whoever asks
for the deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from demur.core.entropy import Source
from demur.unlearning.records.commitments import commitment
from demur.unlearning.records.pseudonyms import Pseudonyms

_MOST_PEOPLE = 1024  # whose pseudonyms are at hand


class NewRecord(NamedTuple):
    """A record that may be learned, as journal and tables will name it.

    `name` and `subject_name` are those of ids that are not remembered; the openings of
    its two pseudonyms are as they are stored.
    """

    pseudonym: str
    generation: int
    subject: str
    name: str | None = None
    subject_name: str | None = None
    opening: str | None = None
    subject_opening: str | None = None


class _Named(NamedTuple):
    """A pseudonym, and its opening as it is stored."""

    pseudonym: str
    opening: str | None


class Directory:
    """The pseudonyms of the ids that a service knows."""

    def __init__(
        self,
        pseudonyms: Pseudonyms,
        source: Source,
        live: Iterable[NewRecord],
    ) -> None:
        self._pseudonyms, self._source = pseudonyms, source
        # Names of record and person, by pseudonym, where these are erased.
        self._live: dict[str, tuple[str, str | None]] = {}
        self._records: dict[str, str] = {}  # pseudonyms by the names of ids
        self._subjects: dict[str, _Named] = {}
        self._counts: Counter[str] = Counter()  # live records of each named subject
        self._remembered = lru_cache(_MOST_PEOPLE)(self._person)  # one has many records
        for record in live:
            self.add(record)

    @property
    def remembers(self) -> bool:
        """Whether an id is known when its record is gone."""
        return self._pseudonyms.remembers

    def find(self, record_id: str | int) -> str:
        """The pseudonym of a record; of an id that is not known, one that none has."""
        name = self._pseudonyms.record(record_id)
        if self.remembers:
            return commitment(name, "record", record_id)
        return self._records.get(name, name)

    def find_subject(self, subject_id: str | int) -> str:
        """The pseudonym of a person; of one that is not known, one that none has."""
        name = self._pseudonyms.subject(subject_id)
        if self.remembers:
            return commitment(name, "subject", subject_id)
        return self._subjects[name].pseudonym if name in self._subjects else name

    def new(
        self,
        record_id: str | int,
        subject_id: str | int | None = None,
        found: str | None = None,
    ) -> NewRecord:
        """Names for a record whose id is not known; `found` is what `find` said."""
        name = self._pseudonyms.record(record_id)
        opening = name if self.remembers else self._token()
        if found is not None and self.remembers:
            pseudonym = found
        else:
            pseudonym = commitment(opening, "record", record_id)
        record = NewRecord(
            pseudonym,
            1,
            self._pseudonyms.alone(pseudonym),
            name=None if self.remembers else name,
            opening=self._pseudonyms.masked(opening, pseudonym),
        )
        return record if subject_id is None else self._owned(record, subject_id)

    def again(
        self,
        record_id: str | int,
        generation: int,
        subject: str,
        subject_id: str | int | None,
    ) -> NewRecord:
        """Names for a remembered record that is learned again.

        It is the same person's, unless another is named.
        """
        record = self.new(record_id)._replace(generation=generation, subject=subject)
        return record if subject_id is None else self._owned(record, subject_id)

    def _owned(self, record: NewRecord, subject_id: str | int) -> NewRecord:
        """The record of a person who is named."""
        if self.remembers:
            person = self._remembered(subject_id)
            return record._replace(
                subject=person.pseudonym, subject_opening=person.opening
            )
        name = self._pseudonyms.subject(subject_id)
        if name not in self._subjects:  # Two new records of one person get the same.
            opening = self._token()
            pseudonym = commitment(opening, "subject", subject_id)
            self._subjects[name] = _Named(pseudonym, opening)
        person = self._subjects[name]
        return record._replace(
            subject=person.pseudonym, subject_name=name, subject_opening=person.opening
        )

    def _person(self, subject_id: str | int) -> _Named:
        """A person who is remembered."""
        opening = self._pseudonyms.subject(subject_id)
        pseudonym = commitment(opening, "subject", subject_id)
        return _Named(pseudonym, self._pseudonyms.masked(opening, pseudonym))

    def _token(self) -> str:
        return self._source.new_key().hex()

    def add(self, record: NewRecord) -> None:
        """Note a record that was learned."""
        if record.name is None:
            return
        self._live[record.pseudonym] = record.name, record.subject_name
        self._records[record.name] = record.pseudonym
        if record.subject_name is not None:
            person = _Named(record.subject, record.subject_opening)
            self._subjects[record.subject_name] = person
            self._counts[record.subject_name] += 1

    def end(self, pseudonym: str) -> None:
        """Forget the id of a record that is gone, and of a person without others."""
        names = self._live.pop(pseudonym, None)
        if names is None:
            return
        name, subject_name = names
        del self._records[name]
        if subject_name is not None:
            self._counts[subject_name] -= 1
            if not self._counts[subject_name]:
                del self._counts[subject_name]
                del self._subjects[subject_name]
