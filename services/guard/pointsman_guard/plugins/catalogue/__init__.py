"""The built-in patterns, by group."""
