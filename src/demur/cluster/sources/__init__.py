"""Reports that lie somewhere, and sums over them that no order can change."""
