"""Errors of the clustering engine."""

from __future__ import annotations

from demur.core.errors import DemurError


class InputChanged(DemurError):
    """The input is not the one that was paid for; nothing was written."""


class UnsupportedClusters(UserWarning):
    """More clusters were asked for than the reports can tell apart."""
