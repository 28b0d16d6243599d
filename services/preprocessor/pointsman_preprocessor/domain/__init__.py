"""What a request says, as values and pure functions."""
