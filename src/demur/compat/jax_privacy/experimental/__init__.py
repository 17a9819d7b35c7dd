"""`jax_privacy.experimental`."""
