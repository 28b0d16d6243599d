"""Choosing among the endpoints of a pool: extension points, and the columns that a decision is made by."""
