"""Plugin framework, configuration model, body edits, fingerprints and clock: pure."""
