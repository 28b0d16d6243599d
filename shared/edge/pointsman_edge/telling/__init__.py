"""What is published and answered about a request: events, usage, metrics, errors."""
