"""How far a head can move when one record moves: losses, bounds, radii."""
