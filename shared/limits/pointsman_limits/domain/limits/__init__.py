"""Limits of requests, tokens and concurrency: how they count. Times are unix seconds, given by the caller."""
