"""Buckets, folders and HTTP."""
