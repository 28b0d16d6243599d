"""Times each fast path beside the plain way."""
