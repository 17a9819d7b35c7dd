"""Heads of the original; a module whose framework is missing says so on import."""
