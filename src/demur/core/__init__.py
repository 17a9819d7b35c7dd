"""What every engine shares: units, bounds, events, prices, entropy, releases."""
