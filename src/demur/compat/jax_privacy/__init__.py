"""The interface of `jax_privacy` (its experimental page and release 2.0.0), over demur.

Change the import lines and keep the code. `docs/compat_jax_privacy.md` lists what
behaves differently and why; in short: a clipped sum is an object that only the noise
accepts, the noise is fresh in every run whatever seed is given, and a plan whose parts
do not fit each other is refused.
"""
