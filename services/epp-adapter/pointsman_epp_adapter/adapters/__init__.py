"""gRPC: what Envoy sends, what it is told."""
