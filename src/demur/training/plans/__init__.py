"""Execution plans: batches, clipping, noise and cost that fit each other."""
