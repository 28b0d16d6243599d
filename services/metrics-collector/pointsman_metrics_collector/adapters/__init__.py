"""Adapters of the metrics-collector: Prometheus, and engines without an agent."""
