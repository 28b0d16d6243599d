"""Chooses an endpoint: values in, values out, with time and seed as arguments. Knows no bus."""
