"""Private gradients at about the price of ordinary ones; see `engine`."""
