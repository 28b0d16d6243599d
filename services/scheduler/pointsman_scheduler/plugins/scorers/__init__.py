"""Scorers: how well each candidate suits a request."""
