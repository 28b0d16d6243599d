"""A service and the process that runs it: life cycle, health, HTTP."""
