"""The terms of a deletion service, fixed when it is first opened.

Their text is the genesis of its journal, so none of them can change later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.durable.chain import canonical
from demur.unlearning.errors import CapacityExhausted, ServiceMismatch
from demur.unlearning.models import make_mode
from demur.unlearning.models.base import Accounting, Composition, Mode, Scope
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.pricing.budget import DeletionBudget
from demur.unlearning.pricing.publications import (
    Answers,
    Publications,
    check_publishable,
    publications_of,
)

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
    answers: Answers | None


@dataclass(frozen=True)
class ServiceTerms:
    """Mode, budget, scope, and how deletions are paid for.

    - `capacity`: under a scope in which deletions (or publications) compose, the number
      that the noise is planned for; elsewhere a limit on the noise of one epoch, for
      the sake of the model's quality (None: no limit). A person's first request of one
      record takes 1 of it; `pricing.budget` has the others.
    - `requests_per_subject`: how the requests of one person share (epsilon, delta); see
      `pricing.budget`.
    - `answers`: None serves the live model; otherwise published copies alone, and how
      often they may be published.
    - `remembers`: ids of deleted records stay known, under a key that its owner keeps.
    - `signer`: the public key of whoever signs the certificates.
    - `labels`: texts for the classes of a mode with `classes`, in their order.
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
    signer: str | None = None
    labels: tuple[str, ...] | None = None
    answers: Publications | None = None

    def __post_init__(self) -> None:
        if isinstance(self.answers, dict):  # from its text
            object.__setattr__(self, "answers", Publications(**self.answers))
        if self.labels is not None:  # a list in its text
            object.__setattr__(self, "labels", tuple(self.labels))

    @classmethod
    def make(
        cls,
        config: Mapping[str, Any],
        *,
        remembers: bool = False,
        testing: bool = False,
        signer: str | None = None,
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
        labels, config = split_labels(config)
        model = make_mode(mode, dimension, **config)
        answers = publications_of(
            requested.get("answers"), requested.get("epsilon"), requested.get("delta")
        )
        if answers is not None:
            model = PublishedAnswers(model)
            check_publishable(answers, model)
            if scope != "subject":
                raise ValueError(
                    "scope must be 'subject' where answers are published: under"
                    " 'joint' a publication would have to hide all records that will"
                    f" ever be deleted; got {scope!r}"
                )
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
            signer=signer,
            labels=labels,
            answers=answers,
        )
        if answers is not None and terms.accounting != "gdp":
            raise ValueError(
                "accounting must be 'gdp' where answers are published: publications"
                f" and deletions are composed as Gaussians; got {terms.accounting!r}"
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
        mode = make_mode(self.mode, self.dimension, **self.config)
        return mode if self.answers is None else PublishedAnswers(mode)

    @property
    def delta_in_all(self) -> float | None:
        """The delta of `DeletionPrices.epsilon_in_all`; None for live answers."""
        return None if self.answers is None else self.answers.delta

    def not_covered(self, mode: Mode) -> tuple[str, ...]:
        """What the theorem of the mode leaves open, and what this service does."""
        lines = list(mode.theorem.not_covered)
        if not self.remembers and not mode.exact:
            lines.append(
                "requests of a person whose records had all been deleted before are not"
                " counted: the service does not remember ids"
            )
        if mode.secret and not self.remembers:
            lines.append(
                "the files of the service hold the state that the published copies hide"
            )
        elif mode.secret:
            lines.append(
                "whoever holds the files of the service can test guesses at records"
                " that are live"
            )
        return tuple(lines)

    def check_per_subject(self, live: Mapping[str, int]) -> None:
        """Refuse more live records of a person than publications are priced for."""
        most = None if self.answers is None else self.answers.records_per_subject
        if most is not None and live and max(live.values()) > most:
            raise CapacityExhausted(
                f"a person may have {most} live record(s) here: published answers are"
                " priced for so many (records_per_subject). Delete one first, or open"
                " a service for more. Nothing has changed.",
                "privacy",
                retrain_required=False,
            )

    def number_of(self, y: Any) -> Any:
        """The number of a class, where its label is given; any other y as it is."""
        if self.labels is None:
            return y
        try:
            return float(self.labels.index(label_text(y)))
        except ValueError:
            raise ValueError(
                f"y must be one of the {len(self.labels)} labels that the service was"
                " opened with (classes=); got another. Nothing has changed."
            ) from None

    def numbers_of(self, Y: ArrayLike) -> ArrayLike:
        """The numbers of many classes."""
        if self.labels is None:
            return Y
        return [self.number_of(y) for y in np.asarray(Y).tolist()]

    def label_of(self, number: float) -> Any:
        """The label of a predicted class, where there are labels."""
        return number if self.labels is None else self.labels[int(number)]

    def to_text(self) -> str:
        """The terms as canonical text: the genesis of the journal."""
        return canonical(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ServiceTerms:
        """The terms that `to_text` wrote; anything else is a ValueError."""
        try:
            terms = cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the terms of a service: {error}") from error
        if terms.to_text() != text:  # A name twice says two things to two readers.
            raise ValueError("not the terms of a service: another wrote this text")
        return terms

    def _wanted_answers(self, answers: Answers | None) -> object:
        """The answers that are asked for, as they are stored; None: as they are."""
        if answers == ("live" if self.answers is None else "published"):
            return None
        if isinstance(answers, Publications) and self.answers is not None:
            return asdict(answers.completed(self.answers.epsilon, self.answers.delta))
        return answers

    def must_equal(
        self, requested_terms: RequestedTerms, config: Mapping[str, Any]
    ) -> None:
        """Refuse other terms than these; what was not asked for is as it is."""
        stored = asdict(self)
        wanted: dict[str, Any] = dict(requested_terms)
        wanted["answers"] = self._wanted_answers(requested_terms.get("answers"))
        if self.model().exact:  # it has no budget of its own, whatever was asked for
            if self.answers is None:
                wanted |= {"epsilon": None, "delta": None}
            else:
                stored |= {"epsilon": self.answers.epsilon, "delta": self.answers.delta}
        labels, config = split_labels(config)
        if labels is not None:
            wanted["labels"] = labels
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


def label_text(label: object) -> str:
    """A label as text; a whole number is its own text, as 7 and "7" are one label."""
    return label if isinstance(label, str) else str(label)


def split_labels(
    config: Mapping[str, Any],
) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """The labels among a mode's options, if `classes` names them, and the others."""
    options = dict(config)
    classes = options.get("classes")
    if not isinstance(classes, list | tuple):
        return None, options
    labels = tuple(label_text(each) for each in classes)
    validate.name(**{f"classes[{at}]": label for at, label in enumerate(labels)})
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise ValueError(
            "classes must be at least two labels, all different (or the number of"
            " classes)"
        )
    options["classes"] = len(labels)
    return labels, options


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
