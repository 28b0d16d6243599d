"""Writes requests to engines and providers, and the headers and names in their answers."""
