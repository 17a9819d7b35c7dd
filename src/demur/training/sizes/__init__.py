"""Physical batch sizes, chosen from public numbers before anything is sampled."""
