"""Compatibility: interfaces of ball_dp, bpm, jax_privacy and memory_pair over demur."""
