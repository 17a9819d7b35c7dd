"""Compiled inner loops of the modes; each module is self-contained (see `rows`)."""
