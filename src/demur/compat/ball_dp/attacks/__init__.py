"""Attacks on a Gaussian release, as audits."""
