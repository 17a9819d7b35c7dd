"""What a plan with hardened noise pays for the rounding of its clipped sums.

The bound grows with the rows of a step (`clipping.accumulation`). How many there may be
follows from the batches, before anything is sampled.
"""

from __future__ import annotations

from demur.core.errors import NotPriced
from demur.training.batches.selection import BatchSelectionStrategy
from demur.training.batches.user_selection import UserSelectionStrategy, base_of
from demur.training.clipping.accumulation import rounding_share

_SAME_BITS = (
    "an example's gradient is computed to the same bits wherever it stands in a batch"
)
_MOST_ROWS = 16_384  # where the batches say nothing
_LARGEST_ROUNDING = 0.01


def stated_rounding(rows: int | None, share: float) -> tuple[str, ...]:
    """What a hardened plan says about the rounding of its sums."""
    if rows is None:
        return ()
    return (
        f"the noise pays {100 * share:.2g}% for the rounding of clipped sums of at most"
        f" {rows} rows, padding included",
        _SAME_BITS,
    )


def most_rows(selection: BatchSelectionStrategy | UserSelectionStrategy) -> int:
    """For how many rows of a step hardened noise pays: twice the batch, for padding."""
    base = base_of(selection)
    size = getattr(base, "truncated_batch_size", None)
    size = getattr(base, "batch_size", size)
    rows = _MOST_ROWS if size is None else max(2 * int(size), 1024)
    share = rounding_share(rows)
    if share > _LARGEST_ROUNDING:
        raise NotPriced(
            f"batches of {size} examples would need {100 * share:.2g}% more noise for"
            " the rounding of their sums, above the limit of 1%: take batches of at"
            " most 20,000 examples, or noise='threefry'. Nothing was spent."
        )
    return rows
