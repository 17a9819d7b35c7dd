"""Batch selection: which examples take part in which step."""
