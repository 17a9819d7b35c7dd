"""`Certificate` of one deletion: what was done, under which theorem, at what cost.

Its content is a row of the journal, word for word, so that the journal's hash chain
fixes it: `tip` is the number and the hash of that row.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from demur.core import validate
from demur.core.rounding import printed_up
from demur.durable.chain import Tip

VERSION = 2
_NOT_PRIVATE = "NOT PRIVATE: the noise came from a seeded source, for tests."


@dataclass(frozen=True)
class Certificate:
    """One record was deleted: by which mode, with what guarantee, recorded where.

    - `record`, `subject`: pseudonyms of the ids; `generation` counts the times the
      record was learned.
    - `requests`: which request of this person it was; `records` how many records that
      request deleted at once.
    - `shift_bound`: how far the model was from the replay without the record, before
      noise of deviation `sigma` was added.
    - `epsilon`, `epsilon_so_far`: of this deletion, and of all that compose with it
      under `scope` (this person's requests, or all deletions), both at `delta`.
    - `state_digest`: the digest of the state after the deletion, where noise is in it.
      (A digest of an exact state would let its holder test guesses at a record that is
      in it, also when that one is deleted in its turn.)
    - `ledger`, `entry`: where the cost is recorded.
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
    state_digest: str | None
    operation: str
    ledger: str
    entry: str
    library: str
    time: str
    tip: Tip | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "not_covered", tuple(self.not_covered))

    def content(self) -> dict[str, Any]:
        """Everything but the tip: the text of the journal's row."""
        content = asdict(self) | {"not_covered": list(self.not_covered)}
        del content["tip"]
        return content

    def to_json(self) -> str:
        """The certificate as text, to keep or hand over."""
        tip = None if self.tip is None else str(self.tip)
        return json.dumps(self.content() | {"tip": tip}, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """The certificate that `to_json` wrote; anything else is a ValueError."""
        try:
            data = json.loads(text)
        except RecursionError as error:
            raise ValueError("not a certificate: nested too deeply") from error
        names = {field.name: field.type for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != set(names):
            raise ValueError(f"not a certificate of deletion: {validate.shorten(data)}")
        if data["version"] != VERSION:
            raise ValueError(
                f"this certificate has version {validate.shorten(data['version'])};"
                f" this demur reads version {VERSION}"
            )
        for name, kind in names.items():
            _check_type(name, str(kind), data[name])
        tip = Tip.parse(data["tip"])
        return cls(**data | {"tip": tip, "not_covered": tuple(data["not_covered"])})

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """The certificate in a file."""
        return cls.from_json(Path(path).read_text())

    def __str__(self) -> str:
        lines = [
            f"Deletion of record {self.record[:12]}... (generation {self.generation},"
            f" epoch {self.epoch}), {self.time[:10]}",
            f"mode {self.mode}, theorem {self.theorem}, scope {self.scope}",
            self.statement,
            f"epsilon {printed_up(self.epsilon)} for this deletion,"
            f" {printed_up(self.epsilon_so_far)} so far, at delta {self.delta:g}",
            f"shift bound {self.shift_bound:.6g}, noise {self.sigma:.6g}",
            *(f"Not covered: {line}." for line in self.not_covered),
        ]
        return "\n".join(lines)


def stamped(statement: str, testing: bool) -> str:
    """The statement of a certificate; for a service for tests, stamped NOT PRIVATE."""
    return f"{_NOT_PRIVATE} {statement}" if testing else statement


def _check_type(name: str, kind: str, value: object) -> None:
    valid = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "str": isinstance(value, str),
        "float": isinstance(value, float | int)
        and not isinstance(value, bool)
        and math.isfinite(value),
        "str | None": value is None or isinstance(value, str),
        "Tip | None": isinstance(value, str),
        "tuple[str, ...]": isinstance(value, list)
        and all(isinstance(line, str) for line in value),
    }[kind]
    if not valid:
        raise ValueError(
            f"not a certificate of deletion: {name} is {validate.shorten(value)}"
        )
