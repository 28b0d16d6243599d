"""Saturation detectors: how full a pool is."""
