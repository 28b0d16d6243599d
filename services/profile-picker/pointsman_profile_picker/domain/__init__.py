"""Choosing a profile, as values and pure functions."""
