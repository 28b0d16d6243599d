"""Keeps every decision and outcome, the usage ledger and its sums; answers questions about them."""
