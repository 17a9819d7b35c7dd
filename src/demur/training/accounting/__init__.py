"""Accounting: the privacy cost of each batch strategy, and the noise for a target."""
