"""Texts to vectors, for the services that compare prompts by meaning."""
