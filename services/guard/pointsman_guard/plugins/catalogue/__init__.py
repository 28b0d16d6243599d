"""The patterns that come with the guard, by group."""
