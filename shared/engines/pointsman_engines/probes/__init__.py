"""Asks a running engine for each thing that the gateway relies on or passes on, and says what it has."""
