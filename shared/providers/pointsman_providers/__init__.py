"""What external providers are asked and answer."""
