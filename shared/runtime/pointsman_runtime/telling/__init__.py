"""What a process says of itself: logs, metrics, traces, its name, how late it runs."""
