"""Rows in memory or on other machines: exact sums and random subsamples."""
