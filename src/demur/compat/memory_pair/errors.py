"""`CapacityDepleted`: the original's RuntimeError, as an error of demur."""

from __future__ import annotations

from demur.unlearning.errors import CapacityExhausted


class CapacityDepleted(CapacityExhausted, RuntimeError):
    """No deletion is left; the original raises RuntimeError, and this is one."""
