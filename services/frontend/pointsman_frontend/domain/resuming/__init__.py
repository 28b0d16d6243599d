"""Continuing a stream at another engine after its first one broke off."""
