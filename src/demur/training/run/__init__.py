"""Training runs: `fit`, its steps, checkpoints, payment and reports."""
