"""Refusals of the training engine, importable without JAX."""

from __future__ import annotations

from demur.core.errors import DemurError


class CheckpointRefused(DemurError):
    """A checkpoint does not belong to the run at hand; nothing was drawn."""


class ExamplesMix(ValueError):
    """The loss of a batch is not made of the losses of its examples."""


class ProcessLost(DemurError):
    """Another process of the run died; ledger and checkpoint are as they were."""


class ProcessesDisagree(DemurError):
    """The processes of a run were called with different things; nothing was spent."""


class ProcessFailed(DemurError):
    """Another process of the run failed, with an error that has no name here."""
