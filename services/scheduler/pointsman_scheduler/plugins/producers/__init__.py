"""Producers of request attributes."""
