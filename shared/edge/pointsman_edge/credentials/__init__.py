"""Secrets of providers, for the edge that sends requests there."""
