"""What a missing framework says."""

from __future__ import annotations


def missing(framework: str, extra: str, error: ImportError) -> ImportError:
    """The error of an adapter whose framework is not installed."""
    return ImportError(
        f"this part of demur needs {framework}, which is not installed ({error})."
        f" Install it with: pip install 'demur[{extra}]'"
    )
