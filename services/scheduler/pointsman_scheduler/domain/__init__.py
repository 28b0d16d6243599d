"""The choice of an endpoint: values in, values out, time and seed as arguments. Knows no bus."""
