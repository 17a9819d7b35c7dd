"""Physical batch sizes and other resources, from public numbers alone."""
