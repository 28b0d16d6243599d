"""Settings of a process and the configuration of the gateway: read, checked, compiled."""
