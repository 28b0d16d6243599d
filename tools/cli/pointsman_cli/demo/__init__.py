"""`pointsman demo`: mixed traffic on a stack, and the measurements of it."""
