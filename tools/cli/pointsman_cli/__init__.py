"""The pointsman command: up, demo, watch, config, doctor, explain."""
