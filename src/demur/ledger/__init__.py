"""The ledger: budgets, filters, payments, entries, reservations, readings, export."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.core.errors import AccessRefused as AccessRefused
    from demur.core.errors import AlreadyDecided as AlreadyDecided
    from demur.core.errors import ApprovalDeclined as ApprovalDeclined
    from demur.core.errors import ApprovalPending as ApprovalPending
    from demur.core.errors import BudgetExceeded as BudgetExceeded
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
    from demur.durable.chain import Tip as Tip
    from demur.durable.chain import evidence_digest as evidence_digest
    from demur.durable.chain import load_signing_key as load_signing_key
    from demur.durable.postgres import Timeouts as Timeouts
    from demur.ledger.approval.requests import ApprovalRequest as ApprovalRequest
    from demur.ledger.approval.requests import Decision as Decision
    from demur.ledger.backup import BackupCheck as BackupCheck
    from demur.ledger.backup import backup_ledger as backup_ledger
    from demur.ledger.backup import check_backup as check_backup
    from demur.ledger.calls import LedgerCalls as LedgerCalls
    from demur.ledger.export import entry_that_pays as entry_that_pays
    from demur.ledger.export import export_ledger as export_ledger
    from demur.ledger.export import registry_records as registry_records
    from demur.ledger.in_memory import LedgerLeftBehind as LedgerLeftBehind
    from demur.ledger.in_memory import checked_ledger as checked_ledger
    from demur.ledger.in_memory import ledger_for as ledger_for
    from demur.ledger.in_memory import ledger_or_in_memory as ledger_or_in_memory
    from demur.ledger.in_memory import left_behind as left_behind
    from demur.ledger.in_memory import whole_budget as whole_budget
    from demur.ledger.ledger import Ledger as Ledger
    from demur.ledger.notes import Note as Note
    from demur.ledger.payment import Payment as Payment
    from demur.ledger.reader import BudgetStatus as BudgetStatus
    from demur.ledger.reader import BudgetStatuses as BudgetStatuses
    from demur.ledger.reader import Commit as Commit
    from demur.ledger.reader import Declined as Declined
    from demur.ledger.reader import Recovery as Recovery
    from demur.ledger.reading import Group as Group
    from demur.ledger.reading import Reading as Reading
    from demur.ledger.remote.wire import error_data as error_data
    from demur.ledger.reservation import Draw as Draw
    from demur.ledger.reservation import Reservation as Reservation
    from demur.ledger.rules.approval import ApprovalRule as ApprovalRule
    from demur.ledger.rules.budget import Budget as Budget
    from demur.ledger.rules.filters import Filter as Filter
    from demur.ledger.rules.meters import GaussianMeter as GaussianMeter
    from demur.ledger.rules.meters import RenyiMeter as RenyiMeter
    from demur.ledger.run_ledger import RunLedger as RunLedger
    from demur.ledger.series import Forecast as Forecast
    from demur.ledger.series import Moment as Moment
    from demur.ledger.series import Projection as Projection
    from demur.ledger.series import Readings as Readings
    from demur.ledger.series import forecast as forecast
    from demur.ledger.series import over_time as over_time
    from demur.ledger.series import project as project
    from demur.ledger.storage.receipts import Receipt as Receipt
    from demur.ledger.storage.receipts import parse_receipts as parse_receipts
    from demur.ledger.verification import Verification as Verification
    from demur.ledger.writer import Unfinished as Unfinished

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
