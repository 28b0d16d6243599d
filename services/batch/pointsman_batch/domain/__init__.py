"""Values in, values out: lines, objects of the APIs, pace."""
