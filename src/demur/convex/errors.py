"""Errors of the convex engine."""

from __future__ import annotations

from demur.core.errors import DemurError


class NotConverged(DemurError):
    """The gradient did not fall to tau: nothing was released, nothing was charged."""


class NotAtMinimiser(DemurError):
    """A model does not minimise the stated objective; nothing was released."""


class DataChanged(DemurError):
    """Rows that are read several times were not the same each time."""
