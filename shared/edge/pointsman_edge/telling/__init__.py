"""The record of a request, and its events, usage and metrics."""
