"""Clipping of per-example gradients: by vmap or ghost clipping."""
