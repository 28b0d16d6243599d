"""Flight logs: replayed, judged, and compared with other policies in virtual time."""
