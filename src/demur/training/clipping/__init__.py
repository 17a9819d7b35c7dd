"""Sums of clipped per-example gradients, for any JAX loss."""
