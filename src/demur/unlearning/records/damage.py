"""What is stored and cannot be read: damage, told as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import NoResultFound

from demur.unlearning.errors import ServiceDamaged

# What reading text, numbers or a table that are none of ours may raise.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    NoResultFound,
)


@contextmanager
def readable() -> Iterator[None]:
    """Around what is read from disk: text that is none of ours is damage, not a bug."""
    try:
        yield
    except UNREADABLE as error:
        raise ServiceDamaged(
            f"what is stored cannot be read ({type(error).__name__}): it was edited, or"
            " comes from elsewhere. Restore a whole copy."
        ) from error
