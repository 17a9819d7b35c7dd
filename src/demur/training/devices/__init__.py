"""Devices and processes of one run: placement of arrays, and agreement."""
