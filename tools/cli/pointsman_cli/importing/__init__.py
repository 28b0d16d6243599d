"""Translates configurations of other gateways. A setting without an equivalent is listed."""
