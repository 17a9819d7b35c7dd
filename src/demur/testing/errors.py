"""What the contract checks raise."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A contract does not hold; the message says what was seen."""


class NoExample(LookupError):
    """Something was discovered that the contracts cannot build."""
