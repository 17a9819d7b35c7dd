"""Errors of the adapters, importable without any framework."""

from __future__ import annotations

from demur.core.errors import DemurError


class NotALinearHead(DemurError):
    """A model is not a linear head, so no bound applies; nothing was spent."""


class BadRows(ValueError):
    """Rows that are no points of the unit cube with ids; how many, never which."""
