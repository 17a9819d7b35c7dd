"""The ImportError of an adapter whose framework is not installed."""

from __future__ import annotations


def missing(framework: str, extra: str, error: ImportError) -> ImportError:
    """The error to raise; it names the extra to install, and the missing module."""
    return ImportError(
        f"this part of demur needs {framework}, which is not installed ({error})."
        f" Install it with: pip install 'demur[{extra}]'",
        name=error.name,
    )
