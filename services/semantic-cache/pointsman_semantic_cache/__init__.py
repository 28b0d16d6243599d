"""Answers a request from the stored response to an equal or equivalent one."""
