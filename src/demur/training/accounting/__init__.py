"""What a way of forming batches costs, and the noise for a target."""
