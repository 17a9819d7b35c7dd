"""Core types of all engines: units, bounds, costs, accounting, entropy, releases."""
