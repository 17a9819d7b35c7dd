"""Ghost clipping: clipped sums at about the cost of an ordinary gradient."""
