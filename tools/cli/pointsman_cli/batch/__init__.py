"""`pointsman batch`: runs files of requests, and shows batches."""
