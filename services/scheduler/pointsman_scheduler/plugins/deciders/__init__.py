"""Conditions that profile handlers refer to."""
