"""A live model that learns, forgets on request, and says what that is worth."""

from importlib import import_module
from typing import TYPE_CHECKING

from demur.unlearning.calibrator import Calibrator as Calibrator
from demur.unlearning.calibrator import CalibStats as CalibStats
from demur.unlearning.certificate import Certificate as Certificate
from demur.unlearning.drift import DriftDetector as DriftDetector
from demur.unlearning.forgetting import CalibrationRecord as CalibrationRecord
from demur.unlearning.hooks import Happened as Happened
from demur.unlearning.hooks import Hooks as Hooks
from demur.unlearning.machine import EarlyPrediction as EarlyPrediction
from demur.unlearning.memory_pair import MemoryPair as MemoryPair
from demur.unlearning.metrics import Metrics as Metrics
from demur.unlearning.modes import make_mode as make_mode
from demur.unlearning.odometer import PrivacyOdometer as PrivacyOdometer
from demur.unlearning.phase import IllegalTransition as IllegalTransition
from demur.unlearning.phase import Phase as Phase
from demur.unlearning.refusals import CapacityExhausted as CapacityExhausted
from demur.unlearning.refusals import RecordExists as RecordExists
from demur.unlearning.refusals import RecordMismatch as RecordMismatch
from demur.unlearning.refusals import RecordNeeded as RecordNeeded
from demur.unlearning.refusals import UnknownRecord as UnknownRecord
from demur.unlearning.retrain_test import RetrainReport as RetrainReport
from demur.unlearning.retrain_test import (
    verify_against_retrain as verify_against_retrain,
)
from demur.unlearning.service import UnlearningService as UnlearningService

if TYPE_CHECKING:  # scikit-learn takes longer to load than all the rest
    from demur.unlearning.estimators import (
        UnlearnableClassifier as UnlearnableClassifier,
    )
    from demur.unlearning.estimators import UnlearnableRegressor as UnlearnableRegressor

_ESTIMATORS = ("UnlearnableClassifier", "UnlearnableRegressor")


def __getattr__(name: str) -> object:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("demur.unlearning.estimators"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS})
