"""The replicas that keep the books: their leases, questions, snapshots, and ends of requests from the bus."""
