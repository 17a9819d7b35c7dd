"""Samplers with a proven error: Gaussian integers and one random stream per row."""
