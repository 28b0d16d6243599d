"""What is written on a request before it is sent."""
