"""Audits of one run: canaries, guesses about them, and plans that sample records."""
