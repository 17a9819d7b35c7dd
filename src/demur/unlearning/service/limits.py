"""Limits on the noise that requests may cause, set by the owner at each opening.

Where a person's requests share a budget, request j takes j times the noise of the
first, and k records in one request k times that of one (`pricing.budget`): a hundred
requests of one person would blur the model for everybody as much as 338,350 persons who
ask once. So one person's requests within a period are answered by noise up to a limit.
It is counted like the capacity, in first requests of one record: a person's request j
of k records takes (j k)^2. A request beyond it is one for which the capacity is used
up: `on_exhausted` says whether it is refused, waits, or starts a retrain. One that
exceeds the limit by itself can be answered by a retrain alone.

A limit may not follow what the model published, or whether a request is carried out
would depend on it. These follow counts, the clock and the configuration.

A request that waits, or that a crash cut short, keeps the limits that were named for
it. An opening that names none carries it out under these; one that names limits has
them hold instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from demur.core import validate
from demur.durable.chain import canonical
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.records import journal
from demur.unlearning.records.read_errors import readable
from demur.unlearning.service.forecast import score_noise
from demur.unlearning.service.state import ServiceState

_MOST_DAYS = 36500


@dataclass(frozen=True)
class ServiceLimits:
    """What one person, and all together, may do to the model by noise.

    - `noise` of one person within `days`, in first requests of one record; None: any.
      The default is enough for six requests of one record, or one request of ten.
      Where everybody shares a capacity, a quarter of that is the most, too.
    - `score_noise`: the largest deviation that all deletions of an epoch may cause in
      the score of a row at the norm bound; None: any. `status().noise` shows it.
    """

    noise: int | None = 100
    days: float = 14.0
    score_noise: float | None = None

    def __post_init__(self) -> None:
        if self.noise is not None:
            validate.count(noise=self.noise)
        validate.positive(days=self.days)
        if self.days > _MOST_DAYS:
            raise ValueError(f"days must be at most {_MOST_DAYS}; got {self.days!r}")
        if self.score_noise is not None:
            validate.positive(score_noise=self.score_noise)

    def to_text(self) -> str:
        """The limits as text, to be kept with a request."""
        return canonical(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ServiceLimits:
        """What `to_text` wrote."""
        with readable():
            return cls(**json.loads(text))


def check_limits(limits: object) -> None:
    """Refuse what are no limits, before a service is opened with them."""
    if limits is not None and not isinstance(limits, ServiceLimits):
        raise TypeError(
            "limits must be ServiceLimits(noise=..., days=..., score_noise=...); got"
            f" {type(limits).__name__}. Nothing was changed."
        )


def strictest(limits: Iterable[ServiceLimits]) -> ServiceLimits:
    """What keeps all of these, for requests that are carried out together."""
    kept = list(limits)
    noise = [each.noise for each in kept if each.noise is not None]
    score = [each.score_noise for each in kept if each.score_noise is not None]
    return ServiceLimits(
        noise=min(noise, default=None),
        days=max(each.days for each in kept),
        score_noise=min(score, default=None),
    )


def check_persons(
    limits: ServiceLimits,
    state: ServiceState,
    numbers: Mapping[str, int],
    used_by: Mapping[str, int],
    *,
    shared: bool,
) -> None:
    """Refuse a request after which one person has caused more noise than they may.

    `numbers` are those of their requests, `used_by` what each person's part takes;
    `shared` says that all persons share one capacity.
    """
    most, capacity = limits.noise, state.terms.capacity
    if most is None:
        return
    if shared and capacity is not None:
        most = min(most, max(capacity // 4, 1))
    for subject, used in used_by.items():
        before = 0
        if numbers[subject] > 1:
            before = _recent(state, subject, limits.days)
        if before + used > most:
            raise CapacityExhausted(
                f"this request would take the noise of {used} first requests of one"
                f" record, after {before} by the same person within {limits.days:g}"
                f" days, and one person may cause {most}. It can wait"
                " (on_exhausted='queue'), or the model be trained anew without the"
                " record; the owner sets the limit (limits=). Nothing was spent.",
                "rate",
                retrain_required=True,
            )


def check_noise(
    limits: ServiceLimits, state: ServiceState, prices: DeletionPrices, used: int
) -> None:
    """Refuse a request after which the noise of the epoch would exceed its limit."""
    most = limits.score_noise
    if most is None or prices.exact:
        return
    after = score_noise(state.mode, prices, state.used + used)
    if after > most:
        raise CapacityExhausted(
            f"the noise of deletions in a score would have a deviation of {after:.3g},"
            f" and the owner's limit is {most:g} (limits=). Retrain on the records that"
            " stay. Nothing was spent.",
            "regret",
            retrain_required=True,
        )


def _recent(state: ServiceState, subject: str, days: float) -> int:
    """What a person's requests within so many days took, in first requests."""
    since = datetime.now(UTC) - timedelta(days=days)
    with state.database.read() as connection:
        intents = journal.intents_since(connection, since)
        return sum(int(intent["used_by"].get(subject, 0)) for intent in intents)
