"""Sensitivity of a head: its form, bounds on gradients, curves, and the radius."""
