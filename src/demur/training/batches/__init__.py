"""Which examples take part in which step."""
