"""Filters, scores and picks among models."""
