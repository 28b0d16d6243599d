"""Stores and embedders outside the process."""
