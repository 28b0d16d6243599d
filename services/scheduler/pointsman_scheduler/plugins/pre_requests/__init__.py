"""Plugins that write headers to a request before it is sent."""
