"""Learning and forgetting on a stream: MemoryPair and its odometer."""
