"""Small helpers of the examples."""
