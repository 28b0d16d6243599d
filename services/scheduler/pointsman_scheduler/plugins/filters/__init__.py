"""Filters: which workers may serve a request."""
