"""What a mirror costs clients, and what it finds."""
