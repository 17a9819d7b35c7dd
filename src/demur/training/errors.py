"""Errors of the training engine, importable without JAX."""

from __future__ import annotations

from demur.core.errors import DemurError


class CheckpointRefused(DemurError):
    """A checkpoint does not belong to the run at hand; nothing was drawn."""


class LossNotSeparable(ValueError):
    """The loss of a batch is neither the mean nor the sum of its examples' losses."""


class ProcessLost(DemurError):
    """Another process of the run died; ledger and checkpoint are unchanged."""


class StartRefused(DemurError):
    """The processes of a run were not joined: a port, a process, or the network."""


class ProcessesDisagree(DemurError):
    """The processes of a run have different arguments; nothing was spent."""


class ProcessFailed(DemurError):
    """Another process of the run failed, with an error that cannot be raised here."""
