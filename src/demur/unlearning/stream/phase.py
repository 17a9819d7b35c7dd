"""The three phases of a memory pair, and the calls that each of them allows."""

from __future__ import annotations

from enum import Enum

from demur.unlearning.errors import IllegalTransition


class Phase(Enum):
    """Calibrate, then learn until N*, then learn and forget in any order."""

    CALIBRATION = 1
    LEARNING = 2
    INTERLEAVING = 3


_ALLOWED = {
    "calibrate_step": (Phase.CALIBRATION,),
    "finalize_calibration": (Phase.CALIBRATION,),
    "insert": (Phase.LEARNING, Phase.INTERLEAVING),
    "delete": (Phase.INTERLEAVING,),
    "recalibrate": (Phase.LEARNING, Phase.INTERLEAVING),
}
_NEXT = {
    "calibrate_step": "calibration is over: use insert(x, y)",
    "finalize_calibration": "calibration is over, and its constants are fixed",
    "insert": "call calibrate_step(x, y), then finalize_calibration(gamma_learn)",
    "delete": "go on inserting until ready_to_predict (inserts_seen >= N_star)",
    "recalibrate": "call finalize_calibration(gamma_learn) first",
}


def require(call: str, phase: Phase) -> None:
    """Refuse a call that `phase` does not allow, and say what comes first."""
    if phase not in _ALLOWED[call]:
        raise IllegalTransition(
            f"{call} is not allowed in phase {phase.name}: {_NEXT[call]}. Nothing has"
            " changed and nothing was spent."
        )
