"""The messages of Envoy's external processing filter."""
