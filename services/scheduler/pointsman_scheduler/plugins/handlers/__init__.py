"""Profile handlers: which profiles run, and how their results combine."""
