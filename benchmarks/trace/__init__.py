"""Which product code one request runs through."""
