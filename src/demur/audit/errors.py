"""Errors of the audits."""

from __future__ import annotations


class NoPower(ValueError):
    """A test without power: too few draws, or its control was not rejected."""
