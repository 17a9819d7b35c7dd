"""Refusals of the audits."""

from __future__ import annotations


class NoPower(ValueError):
    """A test that could not have failed: too few draws, or a control that passed."""
