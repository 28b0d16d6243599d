"""The console: the gateway in a browser."""
