"""Shared by every engine: units, bounds, costs, accounting, entropy, releases."""
