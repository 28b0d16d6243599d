"""Answers requests again that were answered before."""
