"""Events and relations as dp_accounting's, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from demur.core.accounting.events import (
    ApproxDP,
    BestOf,
    Composed,
    Event,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.repetitions import (
    NegativeBinomialRepetitions,
    PoissonRepetitions,
    without_limit,
)
from demur.core.errors import NotPriced
from demur.core.rounding import down

if TYPE_CHECKING:
    import dp_accounting


def to_dp_event(event: Event) -> dp_accounting.DpEvent:
    """The event as a `DpEvent`, for tools built on dp_accounting.

    A subsampled event loses its relation: the accountant it is given to must be made
    for it. (epsilon, delta) pairs have no event in dp_accounting 0.6.0. A search of one
    setting loses the limit of its law: without it the law has the larger mean and the
    larger ratio (`repetitions`), so that a price of dp_accounting holds for it too.
    """
    import dp_accounting as dpa

    match event:
        case GaussianEvent(multiplier=z):
            return dpa.GaussianDpEvent(z)
        case PoissonGaussian(probability=q, multiplier=z):
            return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z))
        case TruncatedPoissonGaussian():
            return dpa.dp_event.TruncatedSubsampledGaussianDpEvent(
                dataset_size=event.dataset_size,
                sampling_probability=event.probability,
                truncated_batch_size=event.batch_size,
                noise_multiplier=event.multiplier,
            )
        case Repeated(event=inner, count=count):
            return dpa.SelfComposedDpEvent(to_dp_event(inner), count)
        case Composed(events=inners):
            return dpa.ComposedDpEvent([to_dp_event(inner) for inner in inners])
        case Pure(epsilon=0.0) | ApproxDP(epsilon=0.0, delta=0.0):
            return dpa.NoOpDpEvent()
        case BestOf(events=(run,), repetitions=NegativeBinomialRepetitions() as law):
            mean = law.mean_without_limit
            return dpa.dp_event.RepeatAndSelectDpEvent(to_dp_event(run), mean, law.eta)
        case BestOf(events=(run,), repetitions=PoissonRepetitions(rate=rate)):
            return dpa.dp_event.RepeatAndSelectDpEvent(to_dp_event(run), rate, math.inf)
    raise NotPriced(
        f"{type(event).__name__} has no counterpart in dp_accounting"
        f" {dpa.__version__ if hasattr(dpa, '__version__') else '0.6'}."
    )


def from_dp_event(
    event: dp_accounting.DpEvent,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE_ONE,
) -> Event:
    """A `DpEvent` of dp_accounting as our event; one without counterpart is refused.

    `neighbours` is the relation its accountant was made for. A plain Gaussian's
    multiplier is read as sigma / (largest norm of a record), dp_accounting's own
    definition: under REPLACE_ONE the sum moves by twice that. A law of repetitions has
    no limit there; here it has one that its price does not need to know of.
    """
    import dp_accounting as dpa

    match event:
        case dpa.NoOpDpEvent():
            return Pure(0.0)
        case dpa.GaussianDpEvent(noise_multiplier=z):
            twice = neighbours is Neighbours.REPLACE_ONE
            return GaussianEvent(down(z / 2) if twice else z)
        case dpa.PoissonSampledDpEvent(
            sampling_probability=q, event=dpa.GaussianDpEvent(noise_multiplier=z)
        ):
            return PoissonGaussian(q, z, neighbours)
        case dpa.dp_event.TruncatedSubsampledGaussianDpEvent():
            return TruncatedPoissonGaussian(
                event.dataset_size,
                event.sampling_probability,
                event.truncated_batch_size,
                event.noise_multiplier,
                neighbours,
            )
        case dpa.SelfComposedDpEvent(event=inner, count=count):
            return Repeated(from_dp_event(inner, neighbours), count)
        case dpa.dp_event.RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            law: PoissonRepetitions | NegativeBinomialRepetitions
            if math.isinf(shape):
                law = without_limit(PoissonRepetitions(mean))
            else:
                law = without_limit(NegativeBinomialRepetitions.of_mean(mean, shape))
            return BestOf((from_dp_event(inner, neighbours),), law)
        case dpa.ComposedDpEvent(events=inners):
            return Composed(tuple(from_dp_event(e, neighbours) for e in inners))
    raise NotPriced(f"{event!r:.200} has no counterpart here. Nothing was spent.")


def unsupported_dp_event() -> dp_accounting.DpEvent:
    """dp_accounting's event for a mechanism that it cannot describe."""
    import dp_accounting as dpa

    return dpa.UnsupportedDpEvent()


def to_relation(neighbours: Neighbours) -> dp_accounting.NeighboringRelation:
    """The neighbouring relation as dp_accounting names it."""
    from dp_accounting import NeighboringRelation as Relation

    return {
        Neighbours.ADD_OR_REMOVE_ONE: Relation.ADD_OR_REMOVE_ONE,
        Neighbours.REPLACE_ONE: Relation.REPLACE_ONE,
        Neighbours.ZERO_OUT: Relation.REPLACE_SPECIAL,
    }[neighbours]
