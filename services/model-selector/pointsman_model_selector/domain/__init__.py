"""Choosing a model, as values and pure functions."""
