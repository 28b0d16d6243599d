"""What the agent hears from its engine besides HTTP."""
