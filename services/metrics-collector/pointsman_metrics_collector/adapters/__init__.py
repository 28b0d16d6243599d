"""What the metrics-collector does towards Prometheus and towards engines without an agent."""
