"""Counters, books, leases and budgets. Values in, values out; time is an argument."""
