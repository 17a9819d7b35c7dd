"""Certificates for models that were trained with differential privacy, and are kept.

A model that was released with (epsilon, delta) at the unit "one record, present or
absent" can stay as it is when a person asks for deletion: it could hardly be told from
the model that training without that person would have given. That is what the entry of
the release says, and a certificate derived from it needs no noise and costs nothing.

**What is proved.** Let M be the release and S the records of one person, at most k of
them, in the data D. The entry bounds M at k records present or absent, so for every set
A of models

    P(M(D) in A) <= e^eps P(M(D without S) in A) + delta,   and the other way round.

The deletion that keeps the model and erases the records therefore has the (eps, delta)
of certified removal, against training anew without S. S is fixed before M is drawn.
What other people ask for after they have seen the model is a function of M(D), so it
changes nothing for this person: everybody has the bound to themselves (scope
"subject").

For m people at once (scope "joint") it is the bound for groups, for a group that was
fixed beforehand: a Gaussian mechanism has m times its mu. Of any other (e, d(e)) at one
record, m steps from D to D without S give

    P(M(D) in A) <= e^(m e) P(M(D without S) in A) + d(e) (1 + e^e + ... + e^((m-1) e)),

for every e. A group that was chosen by looking at the
model is not covered.

**What is not proved** is in `not_covered`, and on the page about it: the bound limits
the influence of the records on the model, and removes nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from demur import __version__
from demur.core import validate
from demur.core.accounting.samplers import MEANINGLESS
from demur.core.adjacency import AddOrRemoveOne, Unit, ZeroOut
from demur.core.declaration import PER_PERSON
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.core.rounding import printed_up, product_up, up
from demur.ledger import Ledger
from demur.unlearning.records.certificate import stamped

VERSION = 1
Scope = Literal["subject", "joint"]
_TRIES = 20  # deltas of one step that are tried for a group
_NOT_COVERED = (
    "the records themselves: erase them from the training data, its copies and backups,"
    " or the next model learns them again",
    "what the run was started from (a pretrained encoder), if it was trained on the"
    " same person",
    "exact values that somebody looked at: losses, accuracies on training data, batch"
    " sizes",
    "checkpoints of the run that were not deleted: their secret half is exact",
)
_GROUP = (
    "a group of people that was chosen by looking at the model: the group must have"
    " been fixed before it was trained"
)


@dataclass(frozen=True)
class InfluenceCertificate:
    """How much the presence of some records can have mattered to a kept model.

    - `records`: how many records are erased; under `scope` "subject" they are one
      person's, under "joint" those of a group that was fixed beforehand.
    - `epsilon` at `delta`: of this release. `epsilon_in_all`: of everything that the
      ledger has released about the same data; None if some entry states no such cost.
    - `artefact`: the digest of the released model, as the entry was committed to it.
    """

    version: int
    statement: str
    scope: str
    unit: str
    records: int
    epsilon: float
    delta: float
    epsilon_in_all: float | None
    dataset: str
    ledger: str
    entry: str
    sequence: int
    artefact: str | None
    not_covered: tuple[str, ...]
    library: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "not_covered", tuple(self.not_covered))

    def to_json(self) -> str:
        """The certificate as text."""
        told = asdict(self) | {"not_covered": list(self.not_covered)}
        return json.dumps(told, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> InfluenceCertificate:
        """What `to_json` wrote; anything else is a ValueError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("not a certificate of influence: no JSON") from error
        names = {each.name for each in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise ValueError(
                f"not a certificate of influence: {validate.shorten(data)}"
            )
        if data["version"] != VERSION:
            raise ValueError(
                f"this certificate has version {validate.shorten(data['version'])};"
                f" this demur reads version {VERSION}"
            )
        return cls(**data)

    @classmethod
    def load(cls, path: str | Path) -> InfluenceCertificate:
        """The certificate in a file."""
        return cls.from_json(Path(path).read_bytes())

    def __str__(self) -> str:
        lines = [self.statement, *(f"Not covered: {it}." for it in self.not_covered)]
        return "\n".join(lines)


def influence_certificate(
    paid_by: Ledger,
    entry: Entry,
    *,
    records: int = 1,
    delta: float | None = None,
    scope: Scope = "subject",
) -> InfluenceCertificate:
    """What a ledger can certify about `records` that are erased, and the model kept.

    `paid_by` is the ledger that the entry was charged to. It is only read: nothing is
    charged, and no noise is drawn. An entry that is not committed (an unfinished run),
    one without a cost for present-or-absent records, and one whose bound means nothing
    are refused.
    """
    validate.count(records=records)
    if scope not in ("subject", "joint"):
        raise ValueError(f'scope must be "subject" or "joint"; got {scope!r}')
    commit = paid_by.commit_of(entry)
    if commit is None:
        raise ValueError(
            f"entry {entry.sequence} is not committed, so there is no model to certify:"
            " finish its run. Nothing was spent."
        )
    # As the ledger has it, and not as the caller's object says.
    (entry,) = [own for own in paid_by.entries() if own.id == entry.id]
    unit = _unit(entry)
    at = _delta(entry, unit) if delta is None else delta
    validate.probability(delta=at)
    epsilon = influence_bound(entry, unit, records, at)
    if not epsilon <= MEANINGLESS:
        raise NotCovered(
            f"the bound for {records} records is epsilon {printed_up(epsilon)}, which"
            " means nothing: train anew without them. Nothing was spent."
        )
    in_all = _in_all(paid_by, unit, records, at)
    certificate = InfluenceCertificate(
        version=VERSION,
        statement="",
        scope=scope,
        unit=str(unit),
        records=records,
        epsilon=epsilon,
        delta=at,
        epsilon_in_all=in_all,
        dataset=entry.dataset,
        ledger=paid_by.id,
        entry=entry.id,
        sequence=entry.sequence,
        artefact=commit.artefact,
        not_covered=_NOT_COVERED if scope == "subject" else (*_NOT_COVERED, _GROUP),
        library=__version__,
    )
    return replace(certificate, statement=_statement(certificate, entry))


def verify_influence(
    certificate: InfluenceCertificate, paid_by: Ledger, *, artefact: str | None = None
) -> list[str]:
    """What is wrong with a certificate, by the ledger it names: nothing, if it is true.

    `artefact` is the digest of the model at hand, to be that of the certificate. The
    ledger is taken at its word: its `verify()` checks that. `epsilon_in_all` was that
    of a day: later entries add to it, so it may be smaller than now, never larger.
    """
    if certificate.ledger != paid_by.id:
        return ["it is of another ledger"]
    entries = [e for e in paid_by.entries() if e.id == certificate.entry]
    if not entries:
        return ["the ledger has no such entry"]
    try:
        true = influence_certificate(
            paid_by,
            entries[0],
            records=certificate.records,
            delta=certificate.delta,
            scope=certificate.scope,  # type: ignore[arg-type]
        )
    except (ValueError, TypeError, NotCovered, NotPriced) as error:
        return [str(error)]
    # Entries that came later have added to the whole.
    later = ("epsilon_in_all", "library")
    wrong = [
        f"{name} is not what the ledger says"
        for name in asdict(true)
        if name not in later and getattr(true, name) != getattr(certificate, name)
    ]
    then, now = certificate.epsilon_in_all, true.epsilon_in_all
    if then is not None and now is not None and not then <= now:
        wrong.append("epsilon_in_all is more than the ledger says")
    if artefact is not None and artefact != certificate.artefact:
        wrong.append("the model at hand is not the one that was released")
    return wrong


def influence_bound(entry: Entry, unit: Unit, records: int, delta: float) -> float:
    """Epsilon at `delta` of an entry for `records` records present or absent."""
    try:
        return entry.epsilon(replace(unit, records_per_person=records), delta)
    except (NotCovered, NotPriced):
        if records == 1:
            raise
    share = delta / records
    for tries in range(_TRIES):
        step = up(entry.epsilon(unit, share))
        if not records * step < 700.0:
            break
        total = (1 + 1e-9) * math.fsum(math.exp(i * step) for i in range(records))
        if share * total <= delta:
            return product_up(records, step)
        # A smaller share has a larger epsilon in its turn: so a little less than fits.
        share = (1 - 1e-6) * 0.9**tries * delta / total
    return math.inf


def _unit(entry: Entry) -> Unit:
    """The unit at which the entry says what the absence of a record changes."""
    for unit in (AddOrRemoveOne(), ZeroOut()):
        try:
            entry.declaration.cost.at(unit, entry.maps)
        except (NotCovered, NotPriced):
            continue
        return unit
    stated = ", ".join(entry.declaration.cost.stated_units())
    raise NotCovered(
        f"entry {entry.sequence} was declared for {stated} only, which says what"
        " changes when a record is replaced, and not when it is absent: use a plan for"
        " ADD_OR_REMOVE_ONE. Nothing was spent."
    )


def _delta(entry: Entry, unit: Unit) -> float:
    deltas = {p.delta for p in entry.promises if type(p.unit) is type(unit)}
    if len(deltas) != 1:
        raise TypeError(f"delta must be given: the ledger has no budget at {unit}")
    return deltas.pop()


def _in_all(ledger: Ledger, unit: Unit, records: int, delta: float) -> float | None:
    at = replace(unit, records_per_person=records)
    try:
        return ledger.epsilon(delta, at)
    except (NotCovered, NotPriced):
        return None


def _statement(certificate: InfluenceCertificate, entry: Entry) -> str:
    person = PER_PERSON in entry.declaration.assumptions
    what = "person" if person else "record"
    several = certificate.records > 1
    whose = f"{certificate.records} {what}s" if several else f"one {what}"
    if certificate.scope == "joint" and several:
        whose += ", fixed before the training,"
    told = (
        f'The model of entry {entry.sequence} ("{entry.label}") was kept. Whether'
        f" {whose} had been in its training data or never there makes at most a"
        f" difference of epsilon {printed_up(certificate.epsilon)} at delta"
        f" {printed_up(certificate.delta)} to what anyone can learn from it: it bounds"
        " the influence of what is erased, and does not remove it."
    )
    return stamped(told, testing=not entry.private)
