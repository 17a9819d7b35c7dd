"""The original's module path."""
