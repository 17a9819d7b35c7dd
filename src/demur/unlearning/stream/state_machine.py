"""The state machine of a memory pair: phase, counters and hooks."""

from __future__ import annotations

import threading
from typing import Literal

from demur.unlearning.stream.hooks import Hook, Hooks, Kind, StreamEvent
from demur.unlearning.stream.phase import Phase

Prediction = float | None


class EarlyPrediction(float):
    """A prediction from before N*: a float, flagged by its type."""


class StateMachine:
    """CALIBRATION, then LEARNING until N*, then INTERLEAVING; hooks at every event."""

    def __init__(
        self,
        predictions: Literal["flag", "withhold"],
        hooks: Hooks | None,
        watched: bool,
    ) -> None:
        if predictions not in ("flag", "withhold"):
            raise ValueError(
                f"predictions must be 'flag' or 'withhold'; got {predictions!r}"
            )
        self.predictions = predictions
        self.phase = Phase.CALIBRATION
        self.N_star: int | None = None
        self.ready_to_predict = False
        self.inserts_seen = 0
        self.deletes_seen = 0
        self._hooks = hooks
        self._watched = watched
        # Nothing to do beside learning: insert takes the short path.
        self.lean = False
        # One call at a time; a hook may call again, in the thread that called it.
        self._lock = threading.RLock()

    @property
    def events_seen(self) -> int:
        """Inserts and deletes so far."""
        return self.inserts_seen + self.deletes_seen

    @property
    def can_predict(self) -> bool:
        """Whether N* inserts were seen."""
        return self.ready_to_predict

    def on(self, kind: str, hook: Hook) -> None:
        """Call `hook` after every event of this kind ("*": of any)."""
        if self._hooks is None:
            self._hooks = Hooks()
        self._hooks.on(kind, hook)
        self.lean = False

    def _advance(self) -> None:
        if self.phase is not Phase.LEARNING:
            return
        assert self.N_star is not None
        if self.inserts_seen >= self.N_star:
            self.ready_to_predict = True
            self._move_to(Phase.INTERLEAVING)

    def _move_to(self, after: Phase) -> None:
        before, self.phase = self.phase, after
        self.lean = after is Phase.INTERLEAVING and not (
            self._watched or self._hooks is not None
        )
        self._fire("phase", before=before)

    def _fire(
        self, kind: Kind, *, before: Phase | None = None, record_id: str | None = None
    ) -> None:
        if self._hooks is not None:
            self._hooks.fire(
                StreamEvent(
                    kind,
                    self.phase,
                    before or self.phase,
                    self.events_seen,
                    self.inserts_seen,
                    self.deletes_seen,
                    record_id,
                )
            )

    def _shown(self, prediction: float) -> Prediction:
        if self.ready_to_predict:
            return prediction
        return None if self.predictions == "withhold" else EarlyPrediction(prediction)
