"""The event stream, key-value buckets and the workers that are registered there."""
