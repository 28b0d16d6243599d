"""`pointsman policy test`: the result of each stage for one request, without a bus."""
