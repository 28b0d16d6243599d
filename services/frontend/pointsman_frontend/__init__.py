"""The OpenAI-compatible HTTP edge."""
