"""Learning and forgetting on a stream: MemoryPair, its odometer and estimators."""
