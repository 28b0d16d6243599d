"""Configurations of other gateways, as ours: what is alike is translated, and what has no equal is named."""
