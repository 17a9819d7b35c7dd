"""Execution plans: batches, clipping, noise and price that fit each other."""
