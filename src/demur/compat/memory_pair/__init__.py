"""The interface of `memory_pair`, over demur's state machine, odometer and ledger.

Change the import lines and keep the code: `memory_pair.src.calibrator` is
`demur.compat.memory_pair.src.calibrator`, and so on. Formulas are the original's
(`mode="seed"`, `formula="seed"`, basic composition), and as with the original there is
*no guarantee*. What behaves differently, and why, is in `docs/compat_memory_pair.md`.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.compat.memory_pair.errors import CapacityDepleted as CapacityDepleted
    from demur.compat.memory_pair.src.calibrator import Calibrator as Calibrator
    from demur.compat.memory_pair.src.lbfgs import (
        LimitedMemoryBFGS as LimitedMemoryBFGS,
    )
    from demur.compat.memory_pair.src.memory_pair import MemoryPair as MemoryPair
    from demur.compat.memory_pair.src.odometer import PrivacyOdometer as PrivacyOdometer
    from demur.unlearning.stream.phase import Phase as Phase

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
