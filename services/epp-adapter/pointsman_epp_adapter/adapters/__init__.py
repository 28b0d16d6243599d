"""gRPC: reads Envoy's messages and answers them."""
