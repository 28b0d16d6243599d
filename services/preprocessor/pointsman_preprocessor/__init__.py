"""Parses each request once and reduces it to facts."""
