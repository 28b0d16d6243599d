"""Limits and budgets that all replicas of a gateway count together."""
