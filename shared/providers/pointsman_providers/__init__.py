"""Translates requests to external providers, and their answers."""
