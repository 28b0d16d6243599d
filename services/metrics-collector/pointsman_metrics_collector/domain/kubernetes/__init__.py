"""The meaning of a Kubernetes cluster's objects for pools. Pure."""
