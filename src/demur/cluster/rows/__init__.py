"""Rows in memory or elsewhere: exact sums over them, and random samples."""
