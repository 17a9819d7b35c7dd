"""Read errors of stored data, raised as `ServiceDamaged`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import NoResultFound

from demur.unlearning.errors import ServiceDamaged

# What reading text, numbers or a table that demur did not write may raise.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,  # nested as deeply as a text can be
    NoResultFound,
)


@contextmanager
def readable() -> Iterator[None]:
    """Around a read: data that demur did not write is damage, and not a bug."""
    try:
        yield
    except UNREADABLE as error:
        raise ServiceDamaged(
            f"what is stored cannot be read ({type(error).__name__}): it was edited, or"
            " comes from elsewhere. Restore a whole copy."
        ) from error
