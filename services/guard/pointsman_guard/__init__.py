"""Checks prompts and answers: blocks, redacts, flags."""
