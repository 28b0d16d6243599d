"""Logs, metrics, traces, the name of a process, and how late it runs."""
