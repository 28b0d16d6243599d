"""Who is asked beyond the bus: key buckets and issuers of tokens."""
