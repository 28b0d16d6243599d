"""The facts of a request, as values and pure functions."""
