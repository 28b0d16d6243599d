"""Bytes and messages on NATS. It knows no journey."""
