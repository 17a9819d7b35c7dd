"""Errors of the adapters, importable without any framework."""

from __future__ import annotations

from demur.core.errors import DemurError


class NotALinearHead(DemurError):
    """A model is not a linear head, so no bound applies; nothing was spent."""


class NothingDrawn(DemurError):
    """Reports were to be committed of which none was drawn; they still can be."""


class BadRows(ValueError):
    """Rows that are not points of the unit cube, or lack ids.

    The message gives a count, and no row.
    """
