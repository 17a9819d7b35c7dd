"""Checkpoints of a run: in files of one process, or through Orbax by all of them."""
