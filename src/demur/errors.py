"""Every error of demur by name, importable without any engine's dependencies.

`DemurError` is the base of all refusals except for bad arguments, which raise a
`ValueError` or a `TypeError`. A message says what was wrong, what to do, and whether
anything was spent.
"""

from demur.adapters.errors import BadRows as BadRows
from demur.adapters.errors import NotALinearHead as NotALinearHead
from demur.adapters.errors import NothingDrawn as NothingDrawn
from demur.audit.errors import NoPower as NoPower
from demur.cluster.errors import InputChanged as InputChanged
from demur.compat.memory_pair.errors import CapacityDepleted as CapacityDepleted
from demur.convex.errors import DataChanged as DataChanged
from demur.convex.errors import NotAtMinimiser as NotAtMinimiser
from demur.convex.errors import NotConverged as NotConverged
from demur.core.errors import AccessRefused as AccessRefused
from demur.core.errors import AlreadyDecided as AlreadyDecided
from demur.core.errors import ApprovalDeclined as ApprovalDeclined
from demur.core.errors import ApprovalPending as ApprovalPending
from demur.core.errors import BudgetExceeded as BudgetExceeded
from demur.core.errors import DatasetsInWrongOrder as DatasetsInWrongOrder
from demur.core.errors import DemurError as DemurError
from demur.core.errors import EntryCommitted as EntryCommitted
from demur.core.errors import IdempotencyConflict as IdempotencyConflict
from demur.core.errors import KeysExposed as KeysExposed
from demur.core.errors import LedgerDamaged as LedgerDamaged
from demur.core.errors import LedgerMismatch as LedgerMismatch
from demur.core.errors import LedgerMissing as LedgerMissing
from demur.core.errors import LedgerRefused as LedgerRefused
from demur.core.errors import LedgerUnreachable as LedgerUnreachable
from demur.core.errors import NoiseReuse as NoiseReuse
from demur.core.errors import NotCovered as NotCovered
from demur.core.errors import NotPaidFor as NotPaidFor
from demur.core.errors import NotPriced as NotPriced
from demur.core.errors import NotPrivate as NotPrivate
from demur.core.errors import OutcomeUnknown as OutcomeUnknown
from demur.testing.errors import ContractBroken as ContractBroken
from demur.testing.errors import NoExample as NoExample
from demur.training.errors import CheckpointRefused as CheckpointRefused
from demur.training.errors import LossNotSeparable as LossNotSeparable
from demur.training.errors import ProcessesDisagree as ProcessesDisagree
from demur.training.errors import ProcessFailed as ProcessFailed
from demur.training.errors import ProcessLost as ProcessLost
from demur.training.errors import StartRefused as StartRefused
from demur.tuning.errors import NotSearchable as NotSearchable
from demur.tuning.errors import SearchInterrupted as SearchInterrupted
from demur.unlearning.errors import CapacityExhausted as CapacityExhausted
from demur.unlearning.errors import CertificateExceeded as CertificateExceeded
from demur.unlearning.errors import IllegalTransition as IllegalTransition
from demur.unlearning.errors import RecordExists as RecordExists
from demur.unlearning.errors import RecordMismatch as RecordMismatch
from demur.unlearning.errors import RecordNeeded as RecordNeeded
from demur.unlearning.errors import RecordUsedInCalibration as RecordUsedInCalibration
from demur.unlearning.errors import ServiceBusy as ServiceBusy
from demur.unlearning.errors import ServiceDamaged as ServiceDamaged
from demur.unlearning.errors import ServiceMismatch as ServiceMismatch
from demur.unlearning.errors import SnapshotRefused as SnapshotRefused
from demur.unlearning.errors import UnknownRecord as UnknownRecord
