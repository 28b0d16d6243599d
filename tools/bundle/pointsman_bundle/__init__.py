"""Runs any set of services in one process."""
