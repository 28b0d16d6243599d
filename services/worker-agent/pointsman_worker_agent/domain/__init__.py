"""Pure parts of the worker-agent."""
