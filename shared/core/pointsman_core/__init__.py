"""Plugin framework, configuration model, body edits and clock: pure, pydantic only."""
