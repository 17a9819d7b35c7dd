"""Tuning that is paid for: a secret search over settings, one entry, one winner.

Hyper-parameters chosen on private data are releases. A search draws in secret how often
it runs, trains and scores with settings drawn at random, releases the best run alone,
and pays once for all of them (`core.accounting.selection` has the theorem).
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.core.accounting.repetitions import (
        BinomialRepetitions as BinomialRepetitions,
    )
    from demur.core.accounting.repetitions import (
        NegativeBinomialRepetitions as NegativeBinomialRepetitions,
    )
    from demur.core.accounting.repetitions import (
        PoissonRepetitions as PoissonRepetitions,
    )
    from demur.core.accounting.repetitions import (
        default_repetitions as default_repetitions,
    )
    from demur.tuning.costs import SearchCost as SearchCost
    from demur.tuning.costs import base_epsilon as base_epsilon
    from demur.tuning.costs import search_costs as search_costs
    from demur.tuning.errors import NotSearchable as NotSearchable
    from demur.tuning.errors import SearchInterrupted as SearchInterrupted
    from demur.tuning.grid_search import PrivateGridSearch as PrivateGridSearch
    from demur.tuning.holdout import held_back as held_back
    from demur.tuning.kmeans_search import search_kmeans as search_kmeans
    from demur.tuning.plan_search import PlanSetting as PlanSetting
    from demur.tuning.plan_search import search_plans as search_plans
    from demur.tuning.scores import NoisyScore as NoisyScore
    from demur.tuning.scores import correct_answers as correct_answers
    from demur.tuning.scores import small_distances as small_distances
    from demur.tuning.scores import small_loss as small_loss
    from demur.tuning.search import PrivateSearch as PrivateSearch
    from demur.tuning.search import SearchCandidate as SearchCandidate
    from demur.tuning.search import SearchResult as SearchResult
    from demur.tuning.search import SearchTerms as SearchTerms
    from demur.tuning.service_search import search_services as search_services

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
