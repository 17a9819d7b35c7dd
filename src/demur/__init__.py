"""demur: learning under differential privacy, charged to one durable ledger.

These are the names that all engines share. Each is loaded when it is first used, so
that `import demur` stays quick and imports no framework.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.core.accounting import price as price
    from demur.core.accounting.gaussian import gaussian_epsilon as gaussian_epsilon
    from demur.core.accounting.gaussian import gaussian_mu as gaussian_mu
    from demur.core.accounting.gaussian import gaussian_sigma as gaussian_sigma
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
    from demur.core.errors import BudgetExceeded as BudgetExceeded
    from demur.core.errors import DemurError as DemurError
    from demur.core.errors import LedgerUnreachable as LedgerUnreachable
    from demur.core.errors import OutcomeUnknown as OutcomeUnknown
    from demur.core.promise import Promise as Promise
    from demur.core.release import Release as Release
    from demur.core.sensitivity import Sensitivity as Sensitivity
    from demur.durable.chain import Tip as Tip
    from demur.ledger.ledger import Ledger as Ledger
    from demur.ledger.rules.budget import Budget as Budget
    from demur.ledger.rules.filters import Filter as Filter

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
