"""What each fast path saves a request."""
