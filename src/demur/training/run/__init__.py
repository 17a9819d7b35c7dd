"""Running a plan: steps, batches, checkpoints, charges and what is reported."""
