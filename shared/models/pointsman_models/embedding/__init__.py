"""Embedding models: texts to vectors."""
