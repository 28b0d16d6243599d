"""What objects of a Kubernetes cluster mean for pools. Pure."""
