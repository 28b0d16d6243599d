"""A Kubernetes cluster as the finder of engines (docs/adr/0008)."""
