"""Fairness policies: whose turn it is within a band."""
