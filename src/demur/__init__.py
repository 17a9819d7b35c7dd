"""demur: learning from people's data under a privacy promise that can be checked.

The words every engine shares. Each is loaded when it is first used, so that
`import demur` stays quick and imports no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.core.accounting import price as price
    from demur.core.adjacency import AddOrRemoveOne as AddOrRemoveOne
    from demur.core.adjacency import Ball as Ball
    from demur.core.adjacency import Erasure as Erasure
    from demur.core.adjacency import LipschitzMap as LipschitzMap
    from demur.core.adjacency import ReplaceOne as ReplaceOne
    from demur.core.adjacency import ZeroOut as ZeroOut
    from demur.core.bounds import Bound as Bound
    from demur.core.bounds import clip_rows as clip_rows
    from demur.core.bounds import normalize_rows as normalize_rows
    from demur.core.bounds import to_unit_cube as to_unit_cube
    from demur.core.declaration import Declaration as Declaration
    from demur.core.entropy import Seeded as Seeded
    from demur.core.entry import Entry as Entry
    from demur.core.errors import BookUnreachable as BookUnreachable
    from demur.core.errors import BudgetExceeded as BudgetExceeded
    from demur.core.errors import DemurError as DemurError
    from demur.core.errors import OutcomeUnknown as OutcomeUnknown
    from demur.core.gaussian import gaussian_epsilon as gaussian_epsilon
    from demur.core.gaussian import gaussian_mu as gaussian_mu
    from demur.core.gaussian import gaussian_sigma as gaussian_sigma
    from demur.core.release import Release as Release
    from demur.core.sensitivity import Sensitivity as Sensitivity
    from demur.ledger.book import Ledger as Ledger
    from demur.ledger.budget import Budget as Budget
    from demur.ledger.chain import Head as Head
    from demur.ledger.filters import Filter as Filter

__version__ = "0.1.0"

_HOME = {
    "price": "core.accounting",
    "AddOrRemoveOne": "core.adjacency",
    "Ball": "core.adjacency",
    "Erasure": "core.adjacency",
    "LipschitzMap": "core.adjacency",
    "ReplaceOne": "core.adjacency",
    "ZeroOut": "core.adjacency",
    "Bound": "core.bounds",
    "clip_rows": "core.bounds",
    "normalize_rows": "core.bounds",
    "to_unit_cube": "core.bounds",
    "gaussian_epsilon": "core.gaussian",
    "gaussian_mu": "core.gaussian",
    "gaussian_sigma": "core.gaussian",
    "Declaration": "core.declaration",
    "Seeded": "core.entropy",
    "Entry": "core.entry",
    "BookUnreachable": "core.errors",
    "BudgetExceeded": "core.errors",
    "DemurError": "core.errors",
    "OutcomeUnknown": "core.errors",
    "Release": "core.release",
    "Sensitivity": "core.sensitivity",
    "Ledger": "ledger.book",
    "Budget": "ledger.budget",
    "Head": "ledger.chain",
    "Filter": "ledger.filters",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demur' has no attribute {name!r}")
    value = getattr(import_module(f"demur.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
