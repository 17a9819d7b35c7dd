"""Gaussian noise for a run of steps, correlated or not, plain or on a lattice."""
