"""Bus, service life cycle, settings, telemetry and health."""
