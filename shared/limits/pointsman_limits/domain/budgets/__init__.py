"""Budgets: money that may be spent in a period, kept in whole nano-dollars and whole days (UTC)."""
