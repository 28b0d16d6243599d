"""The gateway's own door, and the identity with which copies come there."""
