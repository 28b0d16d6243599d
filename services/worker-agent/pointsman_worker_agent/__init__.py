"""Registers one engine, pushes its load, drains it."""
