"""Pickers: from totals to an ordered choice."""
