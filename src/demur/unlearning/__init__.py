"""Machine unlearning: models that delete records on request, and certify it."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.unlearning.errors import CapacityExhausted as CapacityExhausted
    from demur.unlearning.errors import CertificateExceeded as CertificateExceeded
    from demur.unlearning.errors import DuplicateStaysLive as DuplicateStaysLive
    from demur.unlearning.errors import IllegalTransition as IllegalTransition
    from demur.unlearning.errors import RecordExists as RecordExists
    from demur.unlearning.errors import RecordMismatch as RecordMismatch
    from demur.unlearning.errors import RecordNeeded as RecordNeeded
    from demur.unlearning.errors import (
        RecordUsedInCalibration as RecordUsedInCalibration,
    )
    from demur.unlearning.errors import ServiceBusy as ServiceBusy
    from demur.unlearning.errors import ServiceDamaged as ServiceDamaged
    from demur.unlearning.errors import ServiceMismatch as ServiceMismatch
    from demur.unlearning.errors import SnapshotRefused as SnapshotRefused
    from demur.unlearning.errors import UnknownRecord as UnknownRecord
    from demur.unlearning.models import make_mode as make_mode
    from demur.unlearning.pricing.calibrator import Calibrator as Calibrator
    from demur.unlearning.pricing.calibrator import CalibStats as CalibStats
    from demur.unlearning.records.certificate import Certificate as Certificate
    from demur.unlearning.records.memory_key import Passphrase as Passphrase
    from demur.unlearning.records.queue import QueuedRequest as QueuedRequest
    from demur.unlearning.retrain.comparison import (
        verify_against_retrain as verify_against_retrain,
    )
    from demur.unlearning.retrain.findings import RetrainReport as RetrainReport
    from demur.unlearning.service.certificate_verification import (
        verify_certificate as verify_certificate,
    )
    from demur.unlearning.service.service import UnlearningService as UnlearningService
    from demur.unlearning.service.status import ServiceStatus as ServiceStatus
    from demur.unlearning.service.verification import (
        ServiceVerification as ServiceVerification,
    )
    from demur.unlearning.stream.drift import DriftDetector as DriftDetector
    from demur.unlearning.stream.estimators import (
        UnlearnableClassifier as UnlearnableClassifier,
    )
    from demur.unlearning.stream.estimators import (
        UnlearnableRegressor as UnlearnableRegressor,
    )
    from demur.unlearning.stream.hooks import Hooks as Hooks
    from demur.unlearning.stream.hooks import StreamEvent as StreamEvent
    from demur.unlearning.stream.memory_pair import MemoryPair as MemoryPair
    from demur.unlearning.stream.metrics import Metrics as Metrics
    from demur.unlearning.stream.odometer import PrivacyOdometer as PrivacyOdometer
    from demur.unlearning.stream.phase import Phase as Phase
    from demur.unlearning.stream.state_machine import EarlyPrediction as EarlyPrediction

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
