"""HTTP, the bus, buckets, files."""
