"""The terms of a service: everything that is fixed when it is first opened.

They are the genesis of its journal, so none of them can change later.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

from demur.core import validate
from demur.durable.chain import canonical
from demur.unlearning.errors import ServiceMismatch
from demur.unlearning.models import make_mode
from demur.unlearning.models.base import Accounting, Composition, Mode, Scope

RecordStore: TypeAlias = Literal["none", "encrypted"]


@dataclass(frozen=True)
class Terms:
    """Mode, budget, scope, and how deletions are paid for.

    - `capacity`: under a scope in which deletions (or publications) compose, the number
      that the noise is planned for; elsewhere a limit on deletions in one epoch, for
      the sake of the model's quality (None: no limit).
    - `requests_per_subject`: how many requests of one person share (epsilon, delta)
      equally; None shares it out in a series, so that no request is ever the last.
    - `testing`: noise comes from a seeded source; certificates and `repr` are stamped.
    """

    mode: str
    dim: int
    epsilon: float
    delta: float
    scope: Scope = "subject"
    accounting: Accounting = "gdp"
    capacity: int | None = None
    requests_per_subject: int | None = None
    record_store: RecordStore = "none"
    config: dict[str, Any] = field(default_factory=dict)
    testing: bool = False

    @classmethod
    def make(
        cls,
        *,
        mode: str,
        dim: int,
        epsilon: float | None,
        delta: float | None,
        scope: Scope,
        accounting: Accounting | None,
        capacity: int | None,
        requests_per_subject: int | None,
        record_store: RecordStore,
        config: dict[str, Any],
        testing: bool = False,
    ) -> Terms:
        """Terms that a theorem stands behind, or a ValueError that says why not."""
        model = make_mode(mode, dim, **config)
        composition = model.theorem.composition(scope)
        if record_store not in get_args(RecordStore):
            raise ValueError(
                f"record_store must be 'none' or 'encrypted'; got {record_store!r}"
            )
        for name, value in (
            ("capacity", capacity),
            ("requests_per_subject", requests_per_subject),
        ):
            if value is not None:
                validate.count(**{name: value})
        if model.exact:
            epsilon, delta = 0.0, 0.0
        elif epsilon is None or delta is None:
            raise ValueError(
                f"epsilon and delta must be given: mode {mode!r} forgets by noise"
            )
        else:
            validate.positive(epsilon=epsilon)
            validate.open_probability(delta=delta)
        if composition != "nothing" and capacity is None:
            raise ValueError(
                f"capacity must say how many {composition} the noise is planned for:"
                f" under scope {scope!r} the costs of mode {mode!r} add up over them"
            )
        return cls(
            mode=mode,
            dim=int(dim),
            epsilon=float(epsilon),
            delta=float(delta),
            scope=scope,
            accounting=_accounting(model, scope, accounting, requests_per_subject),
            capacity=capacity,
            requests_per_subject=requests_per_subject,
            record_store=record_store,
            config=model.config(),
            testing=testing,
        )

    def model(self) -> Mode:
        """The mode, with nothing learned."""
        return make_mode(self.mode, self.dim, **self.config)

    def to_text(self) -> str:
        """The terms as canonical text: the genesis of the journal."""
        return canonical(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Terms:
        """The terms that `to_text` wrote; anything else is a ValueError."""
        try:
            return cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the terms of a service: {error}") from error

    def must_equal(self, asked: dict[str, Any], config: dict[str, Any]) -> None:
        """Refuse other terms than these; what was not asked for is as it is."""
        kept = asdict(self)
        # A configuration is compared whole, with the defaults that it leaves open.
        if config:
            asked = asked | {"config": self.model().config() | config}
        for name, wanted in asked.items():
            if wanted is not None and kept[name] != wanted:
                raise ServiceMismatch(
                    f"this service was opened with {name} {kept[name]!r}; asked for"
                    f" now: {wanted!r}. The terms of a service never change: ask for"
                    " these, or open another. Nothing was changed."
                )


def _accounting(
    model: Mode, scope: Scope, asked: Accounting | None, requests: int | None
) -> Accounting:
    """The accounting that is proved for what will be composed; refuse any other."""
    composition: Composition = model.theorem.composition(scope)
    alone = composition == "nothing" and (requests == 1 or model.exact)
    proved = ("gdp", "zcdp") if alone else model.theorem.joint_accounting
    usable = [a for a in ("gdp", "zcdp") if a in proved]
    if asked is None:
        return cast(Accounting, usable[0])
    if asked not in usable:
        why = (
            "it is not offered here"
            if asked in proved
            else f"theorem {model.theorem.id!r} does not prove it for several deletions"
        )
        raise ValueError(
            f"accounting must be {' or '.join(map(repr, usable))} for mode"
            f" {model.name!r} under scope {scope!r}; got {asked!r}: {why}"
        )
    return asked
