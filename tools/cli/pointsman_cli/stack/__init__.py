"""A whole gateway as processes: planned, started in order, kept alive, stopped."""
