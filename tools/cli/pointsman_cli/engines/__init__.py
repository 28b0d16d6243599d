"""Engines that a command names: found, listed in pools, added and removed."""
