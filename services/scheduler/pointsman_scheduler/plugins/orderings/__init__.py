"""Ordering policies: which request of a flow goes first."""
