"""What talks to stores and embedders outside the process."""
