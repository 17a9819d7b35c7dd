"""What a deletion costs: constants, capacity, noise and the budget they share."""
