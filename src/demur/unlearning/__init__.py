"""Machine unlearning: models that delete records on request, and certify it."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.unlearning.errors import CapacityExhausted as CapacityExhausted
    from demur.unlearning.errors import CertificateExceeded as CertificateExceeded
    from demur.unlearning.errors import DuplicateStaysLive as DuplicateStaysLive
    from demur.unlearning.errors import IllegalTransition as IllegalTransition
    from demur.unlearning.errors import NoiseGrows as NoiseGrows
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
    from demur.unlearning.estimators.linear import (
        UnlearnableClassifier as UnlearnableClassifier,
    )
    from demur.unlearning.estimators.linear import (
        UnlearnableRegressor as UnlearnableRegressor,
    )
    from demur.unlearning.estimators.pipelines import unlearn_one as unlearn_one
    from demur.unlearning.estimators.range_scaler import RangeScaler as RangeScaler
    from demur.unlearning.models import make_mode as make_mode
    from demur.unlearning.pricing.calibrator import Calibrator as Calibrator
    from demur.unlearning.pricing.calibrator import CalibStats as CalibStats
    from demur.unlearning.pricing.publications import Publications as Publications
    from demur.unlearning.records.certificate import Certificate as Certificate
    from demur.unlearning.records.commitments import Opening as Opening
    from demur.unlearning.records.influence_certificate import (
        InfluenceCertificate as InfluenceCertificate,
    )
    from demur.unlearning.records.influence_certificate import (
        influence_certificate as influence_certificate,
    )
    from demur.unlearning.records.influence_certificate import (
        verify_influence as verify_influence,
    )
    from demur.unlearning.records.memory_key import Passphrase as Passphrase
    from demur.unlearning.records.queue import QueuedRequest as QueuedRequest
    from demur.unlearning.retrain.comparison import (
        verify_against_retrain as verify_against_retrain,
    )
    from demur.unlearning.retrain.findings import RetrainReport as RetrainReport
    from demur.unlearning.service.certificate_verification import (
        verify_certificate as verify_certificate,
    )
    from demur.unlearning.service.certificate_verification import (
        verify_evidence as verify_evidence,
    )
    from demur.unlearning.service.forecast import NoiseForecast as NoiseForecast
    from demur.unlearning.service.limits import ServiceLimits as ServiceLimits
    from demur.unlearning.service.service import UnlearningService as UnlearningService
    from demur.unlearning.service.status import ServiceStatus as ServiceStatus
    from demur.unlearning.service.verification import (
        ServiceVerification as ServiceVerification,
    )
    from demur.unlearning.stream.drift import DriftDetector as DriftDetector
    from demur.unlearning.stream.hooks import Hooks as Hooks
    from demur.unlearning.stream.hooks import StreamEvent as StreamEvent
    from demur.unlearning.stream.memory_pair import MemoryPair as MemoryPair
    from demur.unlearning.stream.metrics import Metrics as Metrics
    from demur.unlearning.stream.odometer import PrivacyOdometer as PrivacyOdometer
    from demur.unlearning.stream.phase import Phase as Phase
    from demur.unlearning.stream.state_machine import EarlyPrediction as EarlyPrediction

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
