"""Errors of the contract checks."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A contract does not hold; the message says what was observed."""


class NoExample(LookupError):
    """A discovered class or function has no example to run the contracts on."""
