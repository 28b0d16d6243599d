"""The response stages: those that the client waits for, and those after the last byte."""
