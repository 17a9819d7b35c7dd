"""The terms of a deletion service, fixed when it is first opened.

Their text is the genesis of its journal, so none of them can change later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

from demur.core import validate
from demur.durable.chain import canonical
from demur.unlearning.errors import ServiceMismatch
from demur.unlearning.models import make_mode
from demur.unlearning.models.base import Accounting, Composition, Mode, Scope
from demur.unlearning.pricing.budget import DeletionBudget

RecordStore: TypeAlias = Literal["none", "encrypted"]
Value = TypeVar("Value")


class RequestedTerms(TypedDict, total=False):
    """Terms named at an opening; None means as stored, or the default."""

    mode: str | None
    dimension: int | None
    epsilon: float | None
    delta: float | None
    scope: Scope | None
    accounting: Accounting | None
    capacity: int | None
    requests_per_subject: int | None
    record_store: RecordStore | None


@dataclass(frozen=True)
class ServiceTerms:
    """Mode, budget, scope, and how deletions are paid for.

    - `capacity`: under a scope in which deletions (or publications) compose, the number
      that the noise is planned for; elsewhere a limit on the noise of one epoch, for
      the sake of the model's quality (None: no limit). A person's first request of one
      record takes 1 of it; `pricing.budget` has the others.
    - `requests_per_subject`: how the requests of one person share (epsilon, delta); see
      `pricing.budget`.
    - `remembers`: ids of deleted records stay known, under a key that its owner keeps.
    - `testing`: noise comes from a seeded source; certificates and `repr` are stamped.
    """

    mode: str
    dimension: int
    epsilon: float
    delta: float
    scope: Scope = "subject"
    accounting: Accounting = "gdp"
    capacity: int | None = None
    requests_per_subject: int | None = None
    record_store: RecordStore = "none"
    config: dict[str, Any] = field(default_factory=dict)
    remembers: bool = False
    testing: bool = False

    @classmethod
    def make(
        cls,
        config: Mapping[str, Any],
        *,
        remembers: bool = False,
        testing: bool = False,
        **requested: Unpack[RequestedTerms],
    ) -> ServiceTerms:
        """Terms that a theorem stands behind, or a ValueError that says why not.

        `config` are the mode's own options. The first deletion is priced, so that a
        budget which certifies nothing is refused before anything is created.
        """
        mode, dimension = _or(requested.get("mode"), "ogd"), requested.get("dimension")
        scope: Scope = _or(requested.get("scope"), "subject")
        record_store: RecordStore = _or(requested.get("record_store"), "none")
        capacity = requested.get("capacity")
        requests = requested.get("requests_per_subject")
        if dimension is None:
            raise ServiceMismatch(
                "there is no service here: the first opening needs dimension=, and"
                " epsilon= and delta= for a mode that forgets by noise. Nothing was"
                " created."
            )
        model = make_mode(mode, dimension, **config)
        composition = model.theorem.composition(scope)
        if record_store not in get_args(RecordStore):
            raise ValueError(
                f"record_store must be 'none' or 'encrypted'; got {record_store!r}"
            )
        for name, value in (
            ("capacity", capacity),
            ("requests_per_subject", requests),
        ):
            if value is not None:
                validate.count(**{name: value})
        epsilon, delta = _budget(
            model, requested.get("epsilon"), requested.get("delta")
        )
        if composition != "nothing" and capacity is None:
            raise ValueError(
                f"capacity must say how many {composition} the noise is planned for:"
                f" under scope {scope!r} the costs of mode {mode!r} add up over them"
            )
        terms = cls(
            mode=mode,
            dimension=int(dimension),
            epsilon=epsilon,
            delta=delta,
            scope=scope,
            accounting=_accounting(model, scope, requested.get("accounting"), requests),
            capacity=capacity,
            requests_per_subject=requests,
            record_store=record_store,
            config=model.config(),
            remembers=remembers,
            testing=testing,
        )
        if not model.exact:
            budget = terms.deletion_budget()
            budget.multiplier(budget.first_part(composition, capacity))
        return terms

    def deletion_budget(self) -> DeletionBudget:
        """The budget that the deletions share; not for an exact mode."""
        return DeletionBudget(
            self.epsilon, self.delta, self.accounting, self.requests_per_subject
        )

    def model(self) -> Mode:
        """The mode, with nothing learned."""
        return make_mode(self.mode, self.dimension, **self.config)

    def to_text(self) -> str:
        """The terms as canonical text: the genesis of the journal."""
        return canonical(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ServiceTerms:
        """The terms that `to_text` wrote; anything else is a ValueError."""
        try:
            return cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the terms of a service: {error}") from error

    def must_equal(
        self, requested_terms: RequestedTerms, config: Mapping[str, Any]
    ) -> None:
        """Refuse other terms than these; what was not asked for is as it is."""
        stored = asdict(self)
        wanted: dict[str, Any] = dict(requested_terms)
        if self.model().exact:  # it has no budget, whatever was asked for
            wanted |= {"epsilon": None, "delta": None}
        # A configuration is compared whole, with the defaults that it leaves open.
        if config:
            wanted["config"] = self.model().config() | dict(config)
        for name, value in wanted.items():
            if value is not None and stored[name] != value:
                raise ServiceMismatch(
                    f"this service was opened with {name} {stored[name]!r}; asked for"
                    f" now: {value!r}. The terms of a service never change: ask for"
                    " these, or open another. Nothing was changed."
                )


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def _budget(
    model: Mode, epsilon: float | None, delta: float | None
) -> tuple[float, float]:
    """(epsilon, delta), checked; an exact mode has none."""
    if model.exact:
        return 0.0, 0.0
    if epsilon is None or delta is None:
        raise ValueError(
            f"epsilon and delta must be given: mode {model.name!r} forgets by noise"
        )
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    return float(epsilon), float(delta)


def _accounting(
    model: Mode, scope: Scope, requested: Accounting | None, requests: int | None
) -> Accounting:
    """The accounting that is proved for what will be composed; refuse any other."""
    composition: Composition = model.theorem.composition(scope)
    alone = composition == "nothing" and (requests == 1 or model.exact)
    proved = ("gdp", "zcdp") if alone else model.theorem.joint_accounting
    usable = [a for a in ("gdp", "zcdp") if a in proved]
    if requested is None:
        return cast(Accounting, usable[0])
    if requested not in usable:
        why = (
            "it is not offered here"
            if requested in proved
            else f"theorem {model.theorem.id!r} does not prove it for several deletions"
        )
        raise ValueError(
            f"accounting must be {' or '.join(map(repr, usable))} for mode"
            f" {model.name!r} under scope {scope!r}; got {requested!r}: {why}"
        )
    return requested
