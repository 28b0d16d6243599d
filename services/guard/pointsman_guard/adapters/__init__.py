"""I/O of the guard."""
