"""Services beyond the bus: key buckets and issuers of tokens."""
