"""Filters: who may serve a request at all."""
