"""Errors of private searches."""

from __future__ import annotations

from demur.core.errors import DemurError


class NotSearchable(DemurError):
    """What was to be searched has no valid private search; nothing was spent."""


class SearchInterrupted(BaseException):
    """A search was stopped from outside, by what the message names; it stays spent.

    Ctrl-C and an exit stay KeyboardInterrupt and SystemExit.
    """
