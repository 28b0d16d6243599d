"""The mirror: has other models answer copies of requests, and compares the answers."""
