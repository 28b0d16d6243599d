"""Tests a running engine for each feature that the gateway relies on or passes on."""
