"""HTTP on both sides, and the bus as the edge uses it."""
