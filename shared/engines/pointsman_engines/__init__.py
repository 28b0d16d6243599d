"""Reads LLM engines over HTTP and speaks for them on the bus: registration, heartbeat, load."""
