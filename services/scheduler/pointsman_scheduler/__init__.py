"""Filters, scores and picks among the endpoints of a pool."""
