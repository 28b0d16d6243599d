"""Reads requests, and refuses those that can't be taken."""
