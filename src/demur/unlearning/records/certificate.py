"""`Certificate` of one deletion: what was done, under which theorem, at what cost.

Its content is a row of the journal, word for word, so that the journal's hash chain
fixes it: `tip` is the number and the hash of that row. A service with a signing key
signs both, with the same function as the ledger its rows.

A certificate comes with an `opening`, for whoever asked for the deletion alone: it ties
the pseudonyms in the certificate to ids (`commitments`). `to_json` leaves it out, and
`for_holder` has it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core import validate
from demur.core.digest import digest_of_text
from demur.core.display import Displayed
from demur.core.rounding import printed_up
from demur.durable import chain
from demur.durable.chain import Tip, canonical
from demur.unlearning.records.commitments import Opening

VERSION = 3
_MOST = 2**63  # no count and no number of a service reaches it
_OUTSIDE = ("tip", "signature", "opening")  # of the journal's row
_NOT_PRIVATE = "NOT PRIVATE: the noise came from a seeded source, for tests."


@dataclass(frozen=True)
class Certificate(Displayed):
    """One record was deleted: by which mode, with what guarantee, recorded where.

    - `record`, `subject`: pseudonyms of the ids; `generation` counts the times the
      record was learned.
    - `requests`: which request of this person it was; `records` how many records that
      request deleted at once.
    - `shift_bound`: how far the model was from the replay without the record, before
      noise of deviation `sigma` was added.
    - `epsilon`, `epsilon_so_far`: of this deletion, and of all that compose with it
      under `scope` (this person's requests, or all deletions), both at `delta`.
    - `epsilon_in_all`, at `delta_in_all`: of all that ever leaves a service which
      answers from published copies: every publication and every request of this person.
      None where the model itself answers, and the promise is for requests and inserts
      that did not look.
    - `state_digest`: the digest of the state after the deletion, where noise is in it.
      (A digest of an exact state would let its holder test guesses at a record that is
      in it, also when that one is deleted in its turn.)
    - `ledger`, `entry`: where the cost is recorded.
    - `signature`: of all this, by the signer that the service's terms name.
    - `opening`: ties `record` and `subject` to ids; for the holder alone.
    """

    version: int
    service: str
    record: str
    generation: int
    subject: str
    requests: int
    records: int
    epoch: int
    tick: int
    mode: str
    theorem: str
    statement: str
    scope: str
    accounting: str
    not_covered: tuple[str, ...]
    shift_bound: float
    sigma: float
    epsilon: float
    delta: float
    epsilon_so_far: float
    epsilon_in_all: float | None
    delta_in_all: float | None
    state_digest: str | None
    operation: str
    ledger: str
    entry: str
    library: str
    time: str
    tip: Tip | None = None
    signature: str | None = None
    opening: Opening | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "not_covered", tuple(self.not_covered))

    def content(self) -> dict[str, Any]:
        """The text of the journal's row: everything but tip, signature and opening."""
        content = asdict(self) | {"not_covered": list(self.not_covered)}
        return {name: v for name, v in content.items() if name not in _OUTSIDE}

    def facts(self) -> dict[str, Any]:
        """All that the certificate says to anybody, as plain data."""
        tip = None if self.tip is None else str(self.tip)
        return self.content() | {"tip": tip, "signature": self.signature}

    def to_json(self) -> str:
        """The certificate as text, to file or to publish; without its opening."""
        return json.dumps(self.facts(), indent=2, allow_nan=False)

    def for_holder(self) -> str:
        """The certificate as text for whoever asked for it, with the opening."""
        if self.opening is None:
            raise ValueError(
                "this certificate has no opening: it came from a file without one, or"
                " from a service that does not remember ids (memory_key=), which hands"
                " it out once, with the deletion"
            )
        told = self.facts() | {"opening": str(self.opening)}
        return json.dumps(told, indent=2, allow_nan=False)

    @property
    def signed_digest(self) -> str:
        """The digest that a signer signs: of the content, and where it is recorded."""
        text = canonical(self.content() | {"tip": str(self.tip)})
        return digest_of_text(f"demur certificate of deletion\n{text}")

    def signed(self, key: Ed25519PrivateKey) -> Certificate:
        """The same, with the signature of its service."""
        return replace(self, signature=chain.sign(key, self.signed_digest))

    def is_signed_by(self, public: str) -> bool:
        """Whether the signature is that of a public key (in hexadecimal)."""
        return chain.signed_by(public, self.signed_digest, self.signature)

    def is_of(
        self,
        record_id: str | int | None = None,
        *,
        subject_id: str | int | None = None,
    ) -> bool:
        """Whether it is about the record of this id, or of this person, or of both."""
        if record_id is None and subject_id is None:
            raise ValueError("give record_id, subject_id or both")
        opening = self.opening
        if opening is None:
            raise ValueError(
                "this certificate has no opening, and without it nobody can tell whose"
                " it is: take the file that came with the deletion"
            )
        return (
            record_id is None or opening.fits("record", record_id, self.record)
        ) and (subject_id is None or opening.fits("subject", subject_id, self.subject))

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """What `to_json` or `for_holder` wrote; anything else is a ValueError."""
        data = _parsed(text)
        names = {each.name: each.type for each in fields(cls)}
        if not isinstance(data, dict):  # It may be anything: none of it is quoted.
            raise ValueError("not a certificate of deletion: it has no named fields")
        if isinstance(data.get("version"), int) and data["version"] != VERSION:
            raise ValueError(
                f"this certificate has version {validate.shorten(data['version'])};"
                f" this demur reads version {VERSION}. Verify it with the version that"
                " made it"
            )
        if set(data) | {"opening"} != set(names):
            raise ValueError("not a certificate of deletion: it has other fields")
        held = data.pop("opening", None)
        for name, value in data.items():
            _check_type(name, str(names[name]), value)
        if not isinstance(held, str | None):
            raise ValueError("not a certificate of deletion: its opening is no text")
        return cls(
            **data
            | {
                "tip": Tip.parse(data["tip"]),
                "not_covered": tuple(data["not_covered"]),
                "opening": None if held is None else Opening.parse(held),
            }
        )

    @classmethod
    def from_content(cls, content: dict[str, Any], tip: Tip) -> Certificate:
        """The certificate in a row of the journal; anything else is a ValueError."""
        kinds = {e.name: str(e.type) for e in fields(cls) if e.name not in _OUTSIDE}
        if not isinstance(content, dict) or set(content) != set(kinds):
            raise ValueError("not a certificate of deletion: a field is missing")
        for name, kind in kinds.items():
            _check_type(name, kind, content[name])
        return cls(**content, tip=tip)

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """The certificate in a file."""
        return cls.from_json(Path(path).read_bytes())

    def _in_all(self) -> list[str]:
        if self.epsilon_in_all is None or self.delta_in_all is None:
            return []
        return [
            f"epsilon {printed_up(self.epsilon_in_all)} for all that ever leaves the"
            f" service, at delta {self.delta_in_all:g}"
        ]

    def __str__(self) -> str:
        lines = [
            f"Deletion of record {self.record[:12]}... (generation {self.generation},"
            f" epoch {self.epoch}), {self.time[:10]}",
            f"mode {self.mode}, theorem {self.theorem}, scope {self.scope}",
            self.statement,
            f"epsilon {printed_up(self.epsilon)} for this deletion,"
            f" {printed_up(self.epsilon_so_far)} so far, at delta {self.delta:g}",
            f"shift bound {self.shift_bound:.6g}, noise {self.sigma:.6g}",
            *self._in_all(),
            *(f"Not covered: {line}." for line in self.not_covered),
        ]
        return "\n".join(lines)


def stamped(statement: str, testing: bool) -> str:
    """The statement of a certificate; for a service for tests, stamped NOT PRIVATE."""
    return f"{_NOT_PRIVATE} {statement}" if testing else statement


def _parsed(text: str | bytes) -> Any:
    """JSON in which no name occurs twice: another reader might take the other one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            raise ValueError("a name occurs twice")
        return data

    try:
        return json.loads(text, object_pairs_hook=once)
    except UnicodeDecodeError as error:
        raise ValueError("not a certificate of deletion: it is no text") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not a certificate of deletion: line {error.lineno} is no JSON"
        ) from error
    except RecursionError as error:
        raise ValueError("not a certificate of deletion: nested too deeply") from error
    except ValueError as error:  # a name twice, or a number of thousands of digits
        twice = str(error) == "a name occurs twice"
        said = error if twice else "a number in it is too long"
        raise ValueError(f"not a certificate of deletion: {said}") from error


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < _MOST
    return isinstance(value, float) and math.isfinite(value)


def _check_type(name: str, kind: str, value: object) -> None:
    valid = {
        "int": isinstance(value, int) and _is_number(value),
        "str": isinstance(value, str),
        "float": _is_number(value),
        "float | None": value is None or _is_number(value),
        "str | None": value is None or isinstance(value, str),
        "Tip | None": isinstance(value, str),
        "tuple[str, ...]": isinstance(value, list)
        and all(isinstance(line, str) for line in value),
    }[kind]
    if not valid:
        raise ValueError(
            f"not a certificate of deletion: its {name} is none that one can have"
        )
