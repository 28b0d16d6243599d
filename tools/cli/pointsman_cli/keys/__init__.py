"""API keys of clients, and the logins of services on NATS."""
