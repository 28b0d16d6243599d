"""Copies of requests, and comparisons of answers. Pure."""
