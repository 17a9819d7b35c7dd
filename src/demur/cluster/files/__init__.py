"""Points and reports in files: read, perturbed, written, with what travels along."""
